// SPDX-License-Identifier: Apache-2.0
// The lamps that boards have.
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/pwm_light.hpp"

#include "led_strip.h"

namespace fleet::esp {

// RgbLamp is one WS2812.
class RgbLamp final : public Led {
public:
    Status start(int gpio);
    Status set_rgb(std::uint8_t r, std::uint8_t g, std::uint8_t b) override;

private:
    led_strip_handle_t strip_ = nullptr;
};

// PlainLamp has one colour: what is asked for becomes its brightness.
class PlainLamp final : public Led {
public:
    Status start(int gpio, bool on_when_low) { return light_.start(gpio, on_when_low, LEDC_CHANNEL_0); }
    Status set_rgb(std::uint8_t r, std::uint8_t g, std::uint8_t b) override;

private:
    PwmLight light_;
};

}  // namespace fleet::esp
