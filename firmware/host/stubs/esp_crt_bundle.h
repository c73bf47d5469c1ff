// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5, 6.0, from its documented use; not compared with the header yet. See README.md.
#pragma once

#include "esp_err.h"

extern "C" esp_err_t esp_crt_bundle_attach(void *conf);
