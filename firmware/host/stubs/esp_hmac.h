// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 6f1f41ff (2025), but for the ids of the keys. See README.md.
#pragma once

#include "esp_err.h"

#include <stddef.h>

typedef enum { HMAC_KEY0 = 0, HMAC_KEY1, HMAC_KEY2, HMAC_KEY3, HMAC_KEY4, HMAC_KEY5, HMAC_KEY_MAX } hmac_key_id_t;
extern "C" esp_err_t esp_hmac_calculate(hmac_key_id_t key_id, const void *message, size_t message_len, uint8_t *hmac);
