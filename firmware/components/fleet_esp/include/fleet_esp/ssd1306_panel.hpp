// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/status.hpp"

#include "driver/i2c_master.h"

#include <array>

namespace fleet::esp {

struct OledWiring {
    int sda = -1, scl = -1;
    std::uint16_t address = 0x3c;
    int width = 128, height = 64;  // or 32
    bool upside_down = false;
};

// Ssd1306Panel sends pictures of one bit per dot over I2C: those pages of eight rows that
// changed, since a whole picture takes 25 ms.
class Ssd1306Panel {
public:
    static constexpr std::size_t max_width = 128, max_pages = 8;

    // start fails if nothing answers there. The panel stays dark until light.
    Status start(const OledWiring &wiring);
    // draw expects the whole picture, in pages.
    Status draw(const std::uint8_t *dots);
    Status light(bool on);
    Status set_contrast(std::uint8_t contrast);

    int width() const { return wiring_.width; }
    int height() const { return wiring_.height; }

private:
    Status open();
    Status set_up();
    Status command(const std::uint8_t *bytes, std::size_t size);
    Status send_page(std::size_t page, const std::uint8_t *dots);

    OledWiring wiring_;
    i2c_master_dev_handle_t device_ = nullptr;
    std::array<std::uint8_t, max_width * max_pages> shown_ = {};
    bool all_ = true;  // the panel's memory is not what shown_ says
};

}  // namespace fleet::esp
