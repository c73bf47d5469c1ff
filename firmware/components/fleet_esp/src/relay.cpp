// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/relay.hpp"

#include "fleet_esp/status_of.hpp"

#include "driver/gpio.h"

#include <cstdint>

namespace fleet::esp {

Status Relay::start(int gpio) {
    gpio_ = gpio;
    const Status open = set(false);  // before the pin drives
    if (!open.ok()) return open;
    gpio_config_t config = {};
    config.pin_bit_mask = std::uint64_t{1} << gpio;
    config.mode = GPIO_MODE_OUTPUT;
    return status_of(gpio_config(&config), "the relay's pin was not set up");
}

Status Relay::set(bool on) {
    return status_of(gpio_set_level(static_cast<gpio_num_t>(gpio_), on ? 1 : 0), "the relay was not switched");
}

}  // namespace fleet::esp
