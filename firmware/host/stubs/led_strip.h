// SPDX-License-Identifier: Apache-2.0
// Stub, compared with a copy of the header of espressif/led_strip 3.0. See README.md.
#pragma once

#include "esp_err.h"

typedef struct led_strip_t *led_strip_handle_t;

typedef enum { LED_MODEL_WS2812, LED_MODEL_SK6812 } led_model_t;

typedef union {
    uint32_t format_id;
} led_color_component_format_t;

typedef struct {
    int strip_gpio_num;
    uint32_t max_leds;
    led_model_t led_model;
    led_color_component_format_t color_component_format;
} led_strip_config_t;

typedef struct {
    uint32_t resolution_hz;
    uint32_t mem_block_symbols;
} led_strip_rmt_config_t;

#define LED_STRIP_COLOR_COMPONENT_FMT_GRB (led_color_component_format_t{1})

extern "C" {
esp_err_t led_strip_new_rmt_device(const led_strip_config_t *config, const led_strip_rmt_config_t *rmt,
                                   led_strip_handle_t *strip);
esp_err_t led_strip_set_pixel(led_strip_handle_t strip, uint32_t index, uint32_t red, uint32_t green, uint32_t blue);
esp_err_t led_strip_refresh(led_strip_handle_t strip);
}
