// SPDX-License-Identifier: Apache-2.0
// Stub, functions compared with espressif/esp-idf b445e38b and 204046e7 (2025); the macros print what version 1 of the
// log does. See README.md.
#pragma once

#include "sdkconfig.h"

#include <stdarg.h>

typedef enum {
    ESP_LOG_NONE,
    ESP_LOG_ERROR,
    ESP_LOG_WARN,
    ESP_LOG_INFO,
    ESP_LOG_DEBUG,
    ESP_LOG_VERBOSE
} esp_log_level_t;
typedef int (*vprintf_like_t)(const char *, va_list);

extern "C" void esp_log_write(esp_log_level_t level, const char *tag, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
extern "C" vprintf_like_t esp_log_set_vprintf(vprintf_like_t func);
extern "C" void esp_log_level_set(const char *tag, esp_log_level_t level);

#define ESP_LOGE(tag, format, ...) esp_log_write(ESP_LOG_ERROR, tag, format "\n", ##__VA_ARGS__)
#define ESP_LOGW(tag, format, ...) esp_log_write(ESP_LOG_WARN, tag, format "\n", ##__VA_ARGS__)
#define ESP_LOGI(tag, format, ...) esp_log_write(ESP_LOG_INFO, tag, format "\n", ##__VA_ARGS__)
#define ESP_LOGD(tag, format, ...) esp_log_write(ESP_LOG_DEBUG, tag, format "\n", ##__VA_ARGS__)
