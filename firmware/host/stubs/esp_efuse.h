// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5, 6.0, from its documented use; not compared with the header yet. See README.md.
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
