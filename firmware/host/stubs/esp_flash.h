// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "esp_err.h"

typedef struct esp_flash_t esp_flash_t;
extern "C" esp_err_t esp_flash_get_size(esp_flash_t *chip, uint32_t *size);
