// SPDX-License-Identifier: Apache-2.0
// Stub, the port compared with espressif/esp-idf 5595ab27 (2023), functions from the documentation. See README.md.
#pragma once

#include "esp_err.h"
#include "freertos/FreeRTOS.h"
#include "freertos/queue.h"

#include <stddef.h>

typedef enum { UART_NUM_0, UART_NUM_1, UART_NUM_2, UART_NUM_MAX } uart_port_t;

extern "C" {
esp_err_t uart_driver_install(uart_port_t port, int rx_buffer, int tx_buffer, int queue_size, QueueHandle_t *queue,
                              int intr_flags);
int uart_read_bytes(uart_port_t port, void *buf, uint32_t length, TickType_t wait);
int uart_write_bytes(uart_port_t port, const void *src, size_t size);
}
