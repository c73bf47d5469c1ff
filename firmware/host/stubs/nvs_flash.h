// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "nvs.h"

extern "C" esp_err_t nvs_flash_init(void);
extern "C" esp_err_t nvs_flash_erase(void);
