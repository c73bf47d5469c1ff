// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 5f44d038 (2024: pins are int); for 6.0 with the migration guide only. See
// README.md.
#pragma once

#include "esp_lcd_types.h"

typedef struct {
    int unused;
} esp_lcd_panel_io_event_data_t;
typedef bool (*esp_lcd_panel_io_color_trans_done_cb_t)(esp_lcd_panel_io_handle_t io,
                                                       esp_lcd_panel_io_event_data_t *data, void *ctx);

typedef struct {
    fleet_stub_pin_t cs_gpio_num;
    fleet_stub_pin_t dc_gpio_num;
    int spi_mode;
    unsigned int pclk_hz;
    size_t trans_queue_depth;
    esp_lcd_panel_io_color_trans_done_cb_t on_color_trans_done;
    void *user_ctx;
    int lcd_cmd_bits;
    int lcd_param_bits;
} esp_lcd_panel_io_spi_config_t;

extern "C" esp_err_t esp_lcd_new_panel_io_spi(esp_lcd_spi_bus_handle_t bus, const esp_lcd_panel_io_spi_config_t *config,
                                              esp_lcd_panel_io_handle_t *io);
