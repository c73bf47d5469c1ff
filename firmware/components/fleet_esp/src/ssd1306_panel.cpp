// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/ssd1306_panel.hpp"

#include "fleet_esp/status_of.hpp"

#include <cstring>

namespace fleet::esp {

namespace {

constexpr std::uint32_t clock_hz = 400'000;
constexpr int timeout_ms = 50;
constexpr std::uint8_t commands_follow = 0x00;
constexpr std::uint8_t dots_follow = 0x40;
constexpr std::size_t max_command = 32;
constexpr std::uint8_t medium_contrast = 0x80;

}  // namespace

Status Ssd1306Panel::start(const OledWiring &wiring) {
    const bool known = wiring.width == static_cast<int>(max_width) && (wiring.height == 32 || wiring.height == 64);
    if (!known) return {Code::invalid, "the screen has 128 by 64 or by 32 dots"};
    wiring_ = wiring;
    all_ = true;
    const Status opened = open();
    return opened.ok() ? set_up() : opened;
}

Status Ssd1306Panel::open() {
    i2c_master_bus_config_t bus_config = {};
    bus_config.i2c_port = -1;  // any that is free
    bus_config.sda_io_num = static_cast<gpio_num_t>(wiring_.sda);
    bus_config.scl_io_num = static_cast<gpio_num_t>(wiring_.scl);
    bus_config.clk_source = I2C_CLK_SRC_DEFAULT;
    bus_config.glitch_ignore_cnt = 7;
    bus_config.flags.enable_internal_pullup = true;
    i2c_master_bus_handle_t bus = nullptr;
    esp_err_t err = i2c_new_master_bus(&bus_config, &bus);
    if (err != ESP_OK) return status_of(err, "the screen's I2C bus did not start");
    i2c_device_config_t config = {};
    config.dev_addr_length = I2C_ADDR_BIT_LEN_7;
    config.device_address = wiring_.address;
    config.scl_speed_hz = clock_hz;
    err = i2c_master_bus_add_device(bus, &config, &device_);
    return status_of(err, "the screen was not added to its I2C bus");
}

Status Ssd1306Panel::set_up() {
    const bool flat = wiring_.height == 32;
    const std::uint8_t columns = wiring_.upside_down ? 0xa0 : 0xa1;
    const std::uint8_t rows = wiring_.upside_down ? 0xc0 : 0xc8;
    const std::uint8_t bytes[] = {
        0xae,                                                // dark
        0xd5,    0x80,                                       // its clock
        0xa8,    static_cast<std::uint8_t>(flat ? 31 : 63),  // rows
        0xd3,    0x00,
        0x40,                                                    // from the first one
        0x8d,    0x14,                                           // it makes its voltage from 3.3 V
        0x20,    0x00,                                           // bytes go from left to right, then to the next page
        columns, rows,                                           //
        0xda,    static_cast<std::uint8_t>(flat ? 0x02 : 0x12),  // how its rows are wired
        0x81,    medium_contrast,                                //
        0xd9,    0xf1,
        0xdb,    0x40,  // voltages
        0xa4,    0xa6,  // what its memory has, not inverted
    };
    return command(bytes, sizeof bytes);
}

Status Ssd1306Panel::command(const std::uint8_t *bytes, std::size_t size) {
    std::uint8_t out[max_command] = {commands_follow};
    if (size >= sizeof out) return {Code::invalid, "a command of the screen is too long"};
    std::memcpy(out + 1, bytes, size);
    return status_of(i2c_master_transmit(device_, out, size + 1, timeout_ms), "the screen does not answer");
}

Status Ssd1306Panel::draw(const std::uint8_t *dots) {
    for (std::size_t page = 0; page < static_cast<std::size_t>(wiring_.height) / 8; ++page) {
        const std::size_t at = page * max_width;
        if (!all_ && std::memcmp(&shown_[at], dots + at, max_width) == 0) continue;
        if (const Status status = send_page(page, dots + at); !status.ok()) {
            all_ = true;  // where it stopped is not known
            return status;
        }
        std::memcpy(&shown_[at], dots + at, max_width);
    }
    all_ = false;
    return {};
}

Status Ssd1306Panel::send_page(std::size_t page, const std::uint8_t *dots) {
    const auto number = static_cast<std::uint8_t>(page);
    const std::uint8_t window[] = {0x21, 0, max_width - 1, 0x22, number, number};
    if (const Status status = command(window, sizeof window); !status.ok()) return status;
    std::uint8_t out[1 + max_width] = {dots_follow};
    std::memcpy(out + 1, dots, max_width);
    return status_of(i2c_master_transmit(device_, out, sizeof out, timeout_ms), "the screen does not answer");
}

Status Ssd1306Panel::light(bool on) {
    const auto byte = static_cast<std::uint8_t>(on ? 0xaf : 0xae);
    return command(&byte, 1);
}

Status Ssd1306Panel::set_contrast(std::uint8_t contrast) {
    const std::uint8_t bytes[] = {0x81, contrast};
    return command(bytes, sizeof bytes);
}

}  // namespace fleet::esp
