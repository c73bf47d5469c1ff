// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 16abaf06 (5.4.0). See README.md.
#pragma once

#include "esp_err.h"

typedef struct temperature_sensor_obj_t *temperature_sensor_handle_t;

typedef struct {
    int range_min;
    int range_max;
} temperature_sensor_config_t;

extern "C" {
esp_err_t temperature_sensor_install(const temperature_sensor_config_t *config, temperature_sensor_handle_t *sensor);
esp_err_t temperature_sensor_enable(temperature_sensor_handle_t sensor);
esp_err_t temperature_sensor_get_celsius(temperature_sensor_handle_t sensor, float *celsius);
}
