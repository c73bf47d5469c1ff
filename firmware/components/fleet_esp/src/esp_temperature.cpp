// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/esp_system.hpp"
#include "fleet_esp/status_of.hpp"

#include "soc/soc_caps.h"

#if SOC_TEMP_SENSOR_SUPPORTED
#include "driver/temperature_sensor.h"

namespace fleet::esp {

namespace {

esp_err_t start_sensor(temperature_sensor_handle_t *sensor) {
    temperature_sensor_config_t config = {};
    config.range_min = -10;
    config.range_max = 80;
    const esp_err_t err = temperature_sensor_install(&config, sensor);
    return err == ESP_OK ? temperature_sensor_enable(*sensor) : err;
}

}  // namespace

// The chip's own temperature; the sensor stays on once it was asked.
Result<int> EspSystem::temperature() const {
    static temperature_sensor_handle_t sensor = nullptr;
    static const esp_err_t started = start_sensor(&sensor);
    float celsius = 0;
    const esp_err_t err = started == ESP_OK ? temperature_sensor_get_celsius(sensor, &celsius) : started;
    if (err != ESP_OK) return status_of(err, "the temperature was not read");
    return static_cast<int>(celsius * 10);
}

}  // namespace fleet::esp
#else

namespace fleet::esp {

Result<int> EspSystem::temperature() const {
    return Status{Code::unsupported, "this chip has no sensor"};
}

}  // namespace fleet::esp
#endif
