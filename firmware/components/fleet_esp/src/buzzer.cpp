// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/buzzer.hpp"

#include "fleet_esp/status_of.hpp"

#include "driver/ledc.h"

namespace fleet::esp {

namespace {

constexpr ledc_channel_t channel = LEDC_CHANNEL_2;  // lamp 0, backlight 1
constexpr std::uint32_t tone_hz = 2000;
constexpr std::uint32_t beep_ms = 80;
constexpr std::uint32_t loudest = 512;  // half of ten bits: a square wave

esp_err_t set_duty(std::uint32_t duty) {
    const esp_err_t err = ledc_set_duty(LEDC_LOW_SPEED_MODE, channel, duty);
    return err == ESP_OK ? ledc_update_duty(LEDC_LOW_SPEED_MODE, channel) : err;
}

}  // namespace

Status Buzzer::start(int gpio) {
    ledc_timer_config_t timer = {};
    timer.speed_mode = LEDC_LOW_SPEED_MODE;
    timer.duty_resolution = LEDC_TIMER_10_BIT;
    timer.timer_num = LEDC_TIMER_1;
    timer.freq_hz = tone_hz;
    timer.clk_cfg = LEDC_AUTO_CLK;
    esp_err_t err = ledc_timer_config(&timer);
    ledc_channel_config_t config = {};
    config.gpio_num = gpio;
    config.speed_mode = LEDC_LOW_SPEED_MODE;
    config.channel = channel;
    config.timer_sel = LEDC_TIMER_1;
    if (err == ESP_OK) err = ledc_channel_config(&config);
    started_ = err == ESP_OK;
    return status_of(err, "the buzzer did not start");
}

Status Buzzer::set_volume(int percent) {
    if (percent < 0 || percent > 100) return {Code::invalid, "volume goes from 0 to 100"};
    if (!started_) return {Code::unavailable, "the buzzer did not start"};
    const auto p = static_cast<std::uint32_t>(percent);
    const esp_err_t err = set_duty(loudest * p * p / 10000);
    if (err != ESP_OK) return status_of(err, "the buzzer was not set");
    volume_ = percent;
    executor_.post_after(beep_ms, [] { set_duty(0); });
    return {};
}

}  // namespace fleet::esp
