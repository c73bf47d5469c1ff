// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/pwm_light.hpp"

#include "fleet_esp/status_of.hpp"

#include <algorithm>

namespace fleet::esp {

namespace {

constexpr std::uint32_t full = (1u << LEDC_TIMER_10_BIT) - 1;
constexpr std::uint32_t pace_hz = 5000;  // above what an eye or a camera sees

// The eye sees ratios, not differences: half as bright takes a quarter of the duty.
std::uint32_t duty_of(int percent) {
    const auto p = static_cast<std::uint32_t>(std::clamp(percent, 0, 100));
    return full * p * p / 10000;
}

}  // namespace

Status PwmLight::start(int gpio, bool on_when_low, ledc_channel_t channel) {
    channel_ = channel;
    ledc_timer_config_t timer = {};
    timer.speed_mode = LEDC_LOW_SPEED_MODE;
    timer.duty_resolution = LEDC_TIMER_10_BIT;
    timer.timer_num = LEDC_TIMER_0;
    timer.freq_hz = pace_hz;
    timer.clk_cfg = LEDC_AUTO_CLK;
    esp_err_t err = ledc_timer_config(&timer);
    if (err != ESP_OK) return status_of(err, "the light's timer did not start");
    ledc_channel_config_t config = {};
    config.gpio_num = gpio;
    config.speed_mode = LEDC_LOW_SPEED_MODE;
    config.channel = channel;
    config.timer_sel = LEDC_TIMER_0;
    config.flags.output_invert = on_when_low ? 1 : 0;
    err = ledc_channel_config(&config);
    return status_of(err, "the light did not start");
}

Status PwmLight::set(int percent) {
    esp_err_t err = ledc_set_duty(LEDC_LOW_SPEED_MODE, channel_, duty_of(percent));
    if (err == ESP_OK) err = ledc_update_duty(LEDC_LOW_SPEED_MODE, channel_);
    return status_of(err, "the light was not set");
}

}  // namespace fleet::esp
