// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 0235e019 (2024). See README.md.
#pragma once

#include "esp_err.h"

typedef enum { GPIO_NUM_NC = -1, GPIO_NUM_0 = 0, GPIO_NUM_MAX = 49 } gpio_num_t;
typedef enum { GPIO_MODE_INPUT = 1, GPIO_MODE_OUTPUT = 2 } gpio_mode_t;
typedef enum { GPIO_PULLUP_DISABLE, GPIO_PULLUP_ENABLE } gpio_pullup_t;

typedef struct {
    uint64_t pin_bit_mask;
    gpio_mode_t mode;
    gpio_pullup_t pull_up_en;
} gpio_config_t;

extern "C" esp_err_t gpio_config(const gpio_config_t *config);
extern "C" esp_err_t gpio_set_level(gpio_num_t gpio, uint32_t level);
extern "C" int gpio_get_level(gpio_num_t gpio);
