// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

#include "nvs.h"

extern "C" esp_err_t nvs_flash_init(void);
extern "C" esp_err_t nvs_flash_erase(void);
