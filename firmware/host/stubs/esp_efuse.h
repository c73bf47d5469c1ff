// SPDX-License-Identifier: Apache-2.0
// Stub, purposes and blocks compared with espressif/esp-idf 96a022af (2025, ESP32-C3), functions from the
// documentation. See README.md.
#pragma once

#include "esp_err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    uint32_t opaque;
} esp_efuse_desc_t;

typedef enum { EFUSE_BLK_KEY0 = 4 } esp_efuse_block_t;
typedef enum { ESP_EFUSE_KEY_PURPOSE_USER = 0, ESP_EFUSE_KEY_PURPOSE_HMAC_UP = 8 } esp_efuse_purpose_t;

extern "C" {
esp_err_t esp_efuse_read_field_blob(const esp_efuse_desc_t *field[], void *dst, size_t dst_size_bits);
esp_efuse_purpose_t esp_efuse_get_key_purpose(esp_efuse_block_t block);
}
