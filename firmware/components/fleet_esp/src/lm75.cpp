// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/lm75.hpp"

#include "fleet_esp/status_of.hpp"

#include <cstdint>

namespace fleet::esp {

namespace {

constexpr std::uint16_t address = 0x48;
constexpr std::uint32_t clock_hz = 100'000;
constexpr int timeout_ms = 20;
constexpr std::uint8_t temperature_register = 0;

}  // namespace

Status Lm75::start(int sda, int scl) {
    i2c_master_bus_config_t bus_config = {};
    bus_config.i2c_port = -1;  // any that is free
    bus_config.sda_io_num = static_cast<gpio_num_t>(sda);
    bus_config.scl_io_num = static_cast<gpio_num_t>(scl);
    bus_config.clk_source = I2C_CLK_SRC_DEFAULT;
    bus_config.glitch_ignore_cnt = 7;
    bus_config.flags.enable_internal_pullup = true;
    i2c_master_bus_handle_t bus = nullptr;
    esp_err_t err = i2c_new_master_bus(&bus_config, &bus);
    if (err != ESP_OK) return status_of(err, "the I2C bus did not start");
    i2c_device_config_t config = {};
    config.dev_addr_length = I2C_ADDR_BIT_LEN_7;
    config.device_address = address;
    config.scl_speed_hz = clock_hz;
    err = i2c_master_bus_add_device(bus, &config, &device_);
    if (err != ESP_OK) return status_of(err, "the thermometer was not added to the I2C bus");
    return read().status();
}

// Two bytes: signed, in 1/256 of a degree.
Result<int> Lm75::read() {
    std::uint8_t bytes[2] = {};
    const esp_err_t err =
        i2c_master_transmit_receive(device_, &temperature_register, 1, bytes, sizeof bytes, timeout_ms);
    if (err != ESP_OK) return status_of(err, "the thermometer does not answer");
    return static_cast<std::int16_t>(bytes[0] << 8 | bytes[1]) * 10 / 256;
}

}  // namespace fleet::esp
