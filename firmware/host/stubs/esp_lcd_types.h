// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "driver/gpio.h"
#include "driver/spi_master.h"
#include "esp_err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct esp_lcd_panel_io_t *esp_lcd_panel_io_handle_t;
typedef struct esp_lcd_panel_t *esp_lcd_panel_handle_t;
typedef int esp_lcd_spi_bus_handle_t;
typedef enum { LCD_RGB_ELEMENT_ORDER_RGB, LCD_RGB_ELEMENT_ORDER_BGR } lcd_rgb_element_order_t;
typedef enum { LCD_RGB_DATA_ENDIAN_BIG, LCD_RGB_DATA_ENDIAN_LITTLE } lcd_rgb_data_endian_t;
