// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 1929b27c (2024). See README.md.
#pragma once

#include "esp_err.h"

extern "C" esp_err_t esp_crt_bundle_attach(void *conf);
