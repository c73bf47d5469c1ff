// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 5595ab27 and 6f1f41ff (2023: pins are int); for 6.0 with the migration guide
// only. See README.md.
#pragma once

#include "esp_lcd_types.h"

typedef struct {
    fleet_stub_pin_t reset_gpio_num;
    lcd_rgb_element_order_t rgb_ele_order;
    lcd_rgb_data_endian_t data_endian;
    uint32_t bits_per_pixel;
    void *vendor_config;
} esp_lcd_panel_dev_config_t;

extern "C" esp_err_t esp_lcd_new_panel_st7789(const esp_lcd_panel_io_handle_t io,
                                              const esp_lcd_panel_dev_config_t *config, esp_lcd_panel_handle_t *panel);
