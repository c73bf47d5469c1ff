// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/reset_button.hpp"

#include "fleet_esp/status_of.hpp"

#include "driver/gpio.h"

#include <utility>

namespace fleet::esp {

Status ResetButton::start(int gpio, std::function<void()> on_held) {
    gpio_ = gpio;
    on_held_ = std::move(on_held);
    gpio_config_t config = {};
    config.pin_bit_mask = std::uint64_t{1} << gpio;
    config.mode = GPIO_MODE_INPUT;
    config.pull_up_en = GPIO_PULLUP_ENABLE;
    const esp_err_t err = gpio_config(&config);
    if (err != ESP_OK) return status_of(err, "the button's pin was not set up");
    executor_.post_after(pace_ms, [this] { look(); });
    return {};
}

void ResetButton::look() {
    const bool pressed = gpio_get_level(static_cast<gpio_num_t>(gpio_)) == 0;
    const std::uint32_t before = held_ms_;
    held_ms_ = pressed ? held_ms_ + pace_ms : 0;
    if (!pressed && before > 0) released(before);
    if (!pressed && armed_ms_ > 0) armed_ms_ -= pace_ms;
    executor_.post_after(pace_ms, [this] { look(); });
}

void ResetButton::released(std::uint32_t held_ms) {
    const bool armed = armed_ms_ > 0;
    armed_ms_ = held_ms >= hold_ms ? between_ms + pace_ms : 0;
    if (armed && held_ms <= moment_ms) on_held_();
}

}  // namespace fleet::esp
