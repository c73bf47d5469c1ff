// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

#include "esp_efuse.h"

extern "C" const esp_efuse_desc_t *ESP_EFUSE_USER_DATA[];
