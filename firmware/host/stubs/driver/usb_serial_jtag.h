// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 1929b27c (2025). See README.md.
#pragma once

#include "esp_err.h"
#include "freertos/FreeRTOS.h"

#include <stddef.h>

typedef struct {
    uint32_t tx_buffer_size;
    uint32_t rx_buffer_size;
} usb_serial_jtag_driver_config_t;

extern "C" {
esp_err_t usb_serial_jtag_driver_install(usb_serial_jtag_driver_config_t *config);
int usb_serial_jtag_read_bytes(void *buf, uint32_t length, TickType_t wait);
int usb_serial_jtag_write_bytes(const void *src, size_t size, TickType_t wait);
}
