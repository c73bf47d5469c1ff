// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/lamps.hpp"

#include "fleet_esp/status_of.hpp"

#include <algorithm>

namespace fleet::esp {

namespace {

constexpr std::uint32_t rmt_ticks_hz = 10 * 1000 * 1000;

}  // namespace

Status RgbLamp::start(int gpio) {
    led_strip_config_t config = {};
    config.strip_gpio_num = gpio;
    config.max_leds = 1;
    config.led_model = LED_MODEL_WS2812;
    config.color_component_format = LED_STRIP_COLOR_COMPONENT_FMT_GRB;
    led_strip_rmt_config_t rmt = {};
    rmt.resolution_hz = rmt_ticks_hz;
    return status_of(led_strip_new_rmt_device(&config, &rmt, &strip_), "the lamp did not start");
}

Status RgbLamp::set_rgb(std::uint8_t r, std::uint8_t g, std::uint8_t b) {
    if (strip_ == nullptr) return {Code::unavailable, "the lamp did not start"};
    esp_err_t err = led_strip_set_pixel(strip_, 0, r, g, b);
    if (err == ESP_OK) err = led_strip_refresh(strip_);
    return status_of(err, "the lamp was not set");
}

Status PlainLamp::set_rgb(std::uint8_t r, std::uint8_t g, std::uint8_t b) {
    return light_.set(std::max({r, g, b}) * 100 / 255);
}

}  // namespace fleet::esp
