// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf be302893 (4.x, before the later reasons of a reset). See README.md.
#pragma once

#include "esp_err.h"

#include <stddef.h>

typedef enum {
    ESP_RST_UNKNOWN,
    ESP_RST_POWERON,
    ESP_RST_EXT,
    ESP_RST_SW,
    ESP_RST_PANIC,
    ESP_RST_INT_WDT,
    ESP_RST_TASK_WDT,
    ESP_RST_WDT,
    ESP_RST_DEEPSLEEP,
    ESP_RST_BROWNOUT,
    ESP_RST_SDIO,
    ESP_RST_USB,
    ESP_RST_JTAG,
    ESP_RST_EFUSE,
    ESP_RST_PWR_GLITCH,
    ESP_RST_CPU_LOCKUP,
} esp_reset_reason_t;

extern "C" {
esp_reset_reason_t esp_reset_reason(void);
// The real one does not return; the stub does not say so, since the fake comes back to the test.
void esp_restart(void);
}
