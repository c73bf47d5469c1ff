// SPDX-License-Identifier: Apache-2.0
// A camera without a sensor: boards of the tests have none.
#include "esp_camera.h"

esp_err_t esp_camera_init(const camera_config_t *) {
    return ESP_FAIL;
}

camera_fb_t *esp_camera_fb_get() {
    return nullptr;
}

void esp_camera_fb_return(camera_fb_t *) {}

sensor_t *esp_camera_sensor_get() {
    return nullptr;
}
