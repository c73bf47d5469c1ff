// SPDX-License-Identifier: Apache-2.0
#include "sdkconfig.h"

#if CONFIG_FLEET_CAMERA
#include "fleet_esp/dvp_camera.hpp"

#include "fleet_esp/status_of.hpp"

#include "esp_camera.h"

namespace fleet::esp {

namespace {

constexpr int sensor_hz = 20'000'000;
constexpr int quality = 12;        // of the sensor: 0 is best, 63 is worst
constexpr int small_quality = 40;  // 160 by 120 dots in less than 2 KB
constexpr int stale_frames = 2;    // that were made at another size, or long ago

}  // namespace

Status DvpCamera::start(const CameraWiring &w) {
    camera_config_t config = {};
    config.pin_pwdn = w.power_down;
    config.pin_reset = w.reset;
    config.pin_xclk = w.clock;
    config.pin_sccb_sda = w.i2c_data;
    config.pin_sccb_scl = w.i2c_clock;
    config.pin_d0 = w.data[0];
    config.pin_d1 = w.data[1];
    config.pin_d2 = w.data[2];
    config.pin_d3 = w.data[3];
    config.pin_d4 = w.data[4];
    config.pin_d5 = w.data[5];
    config.pin_d6 = w.data[6];
    config.pin_d7 = w.data[7];
    config.pin_vsync = w.frame;
    config.pin_href = w.line;
    config.pin_pclk = w.dot;
    config.xclk_freq_hz = sensor_hz;
    config.ledc_timer = LEDC_TIMER_2;  // lamp and backlight have 0, the buzzer 1
    config.ledc_channel = LEDC_CHANNEL_3;
    config.pixel_format = PIXFORMAT_JPEG;
    config.frame_size = FRAMESIZE_VGA;
    config.jpeg_quality = quality;
    config.fb_count = 1;
    config.fb_location = CAMERA_FB_IN_PSRAM;
    config.grab_mode = CAMERA_GRAB_WHEN_EMPTY;
    return status_of(esp_camera_init(&config), "the camera did not start");
}

Status DvpCamera::take(PhotoSize size, FunctionRef<Status(Bytes)> sink) {
    sensor_t *sensor = esp_camera_sensor_get();
    if (sensor == nullptr) return {Code::unavailable, "the camera does not answer"};
    const bool small = size == PhotoSize::small;
    sensor->set_framesize(sensor, small ? FRAMESIZE_QQVGA : FRAMESIZE_VGA);
    sensor->set_quality(sensor, small ? small_quality : quality);
    for (int i = 0; i < stale_frames; i++)
        if (camera_fb_t *stale = esp_camera_fb_get(); stale != nullptr) esp_camera_fb_return(stale);
    camera_fb_t *frame = esp_camera_fb_get();
    if (frame == nullptr) return {Code::io, "the camera gave no picture"};
    const Status status = sink(Bytes(frame->buf, frame->len));
    esp_camera_fb_return(frame);
    return status;
}

}  // namespace fleet::esp
#endif
