// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 3ca37f9a (2022: pins are int); for 6.0 with the migration guide only. See
// README.md.
#pragma once

#include "driver/gpio.h"
#include "esp_err.h"

typedef enum { SPI1_HOST = 0, SPI2_HOST = 1, SPI3_HOST = 2 } spi_host_device_t;
typedef enum { SPI_DMA_DISABLED = 0, SPI_DMA_CH_AUTO = 3 } spi_dma_chan_t;

#if FLEET_STUB_IDF >= 60
typedef gpio_num_t fleet_stub_pin_t;
#else
typedef int fleet_stub_pin_t;
#endif

typedef struct {
    fleet_stub_pin_t mosi_io_num;
    fleet_stub_pin_t miso_io_num;
    fleet_stub_pin_t sclk_io_num;
    fleet_stub_pin_t quadwp_io_num;
    fleet_stub_pin_t quadhd_io_num;
    int max_transfer_sz;
} spi_bus_config_t;

extern "C" esp_err_t spi_bus_initialize(spi_host_device_t host, const spi_bus_config_t *config, spi_dma_chan_t dma);
