// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-protocols 00e927e6 (mdns 1.x). See README.md.
#pragma once

#include "esp_err.h"

#include <stddef.h>

typedef struct {
    const char *key;
    const char *value;
} mdns_txt_item_t;

extern "C" {
esp_err_t mdns_init(void);
esp_err_t mdns_hostname_set(const char *hostname);
esp_err_t mdns_service_add(const char *instance, const char *service_type, const char *proto, uint16_t port,
                           mdns_txt_item_t txt[], size_t num_items);
}
