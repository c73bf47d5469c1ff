// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

#include "esp_err.h"

extern "C" esp_err_t esp_crt_bundle_attach(void *conf);
