// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "esp_efuse.h"

extern "C" const esp_efuse_desc_t *ESP_EFUSE_USER_DATA[];
