// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 499625be (2023). See README.md.
#pragma once

#include "esp_err.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"

extern "C" {
esp_err_t esp_task_wdt_add(TaskHandle_t task);
esp_err_t esp_task_wdt_delete(TaskHandle_t task);
esp_err_t esp_task_wdt_reset(void);
esp_err_t esp_task_wdt_status(TaskHandle_t task);
}
