// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/status.hpp"

#include "esp_lcd_types.h"
#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"

namespace fleet::esp {

struct PanelWiring {
    int data = -1, clock = -1, select = -1, command = -1, reset = -1;
    int width = 320, height = 240;
    unsigned clock_hz = 40 * 1000 * 1000;
    bool landscape = true;  // the panel itself stands upright
    bool mirror_x = false, mirror_y = false;
    bool inverted = true;  // most ST7789 modules show colours the other way round
};

// St7789Panel sends pictures over SPI. It copies stripes into memory that DMA
// reaches, since the frame itself lies in PSRAM.
class St7789Panel {
public:
    Status start(const PanelWiring &wiring);
    // draw sends rows of RGB565, high byte first.
    Status draw(int y, int rows, const std::uint8_t *dots);
    int width() const { return wiring_.width; }
    int height() const { return wiring_.height; }

private:
    Status open_bus();
    Status open_panel();
    Status set_up();
    Status send(int y, int rows, const std::uint8_t *dots);

    PanelWiring wiring_;
    esp_lcd_panel_io_handle_t io_ = nullptr;
    esp_lcd_panel_handle_t panel_ = nullptr;
    SemaphoreHandle_t sent_ = nullptr;
    std::uint8_t *stripe_ = nullptr;
};

}  // namespace fleet::esp
