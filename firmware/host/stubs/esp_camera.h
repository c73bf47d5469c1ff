// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp32-camera 2.1.5. See README.md.
#pragma once

#include "driver/ledc.h"
#include "esp_err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { PIXFORMAT_RGB565, PIXFORMAT_JPEG = 4 } pixformat_t;
typedef enum { FRAMESIZE_QQVGA = 1, FRAMESIZE_VGA = 10 } framesize_t;
typedef enum { CAMERA_GRAB_WHEN_EMPTY, CAMERA_GRAB_LATEST } camera_grab_mode_t;
typedef enum { CAMERA_FB_IN_PSRAM, CAMERA_FB_IN_DRAM } camera_fb_location_t;

typedef struct {
    int pin_pwdn;
    int pin_reset;
    int pin_xclk;
    int pin_sccb_sda;
    int pin_sccb_scl;
    int pin_d7;
    int pin_d6;
    int pin_d5;
    int pin_d4;
    int pin_d3;
    int pin_d2;
    int pin_d1;
    int pin_d0;
    int pin_vsync;
    int pin_href;
    int pin_pclk;
    int xclk_freq_hz;
    ledc_timer_t ledc_timer;
    ledc_channel_t ledc_channel;
    pixformat_t pixel_format;
    framesize_t frame_size;
    int jpeg_quality;
    size_t fb_count;
    camera_fb_location_t fb_location;
    camera_grab_mode_t grab_mode;
    int sccb_i2c_port;
} camera_config_t;

typedef struct {
    uint8_t *buf;
    size_t len;
    size_t width;
    size_t height;
    pixformat_t format;
} camera_fb_t;

typedef struct _sensor sensor_t;
struct _sensor {
    int (*set_framesize)(sensor_t *sensor, framesize_t size);
    int (*set_quality)(sensor_t *sensor, int quality);
};

extern "C" {
esp_err_t esp_camera_init(const camera_config_t *config);
camera_fb_t *esp_camera_fb_get();
void esp_camera_fb_return(camera_fb_t *frame);
sensor_t *esp_camera_sensor_get();
}
