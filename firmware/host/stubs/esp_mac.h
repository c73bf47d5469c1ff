// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 002cd296 (2021). See README.md.
#pragma once

#include "esp_err.h"

typedef enum { ESP_MAC_WIFI_STA, ESP_MAC_WIFI_SOFTAP } esp_mac_type_t;
extern "C" esp_err_t esp_read_mac(uint8_t *mac, esp_mac_type_t type);
