// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 0819ee68 (2021, before the revision had 16 bits). See README.md.
#pragma once

#include <stdint.h>

typedef enum { CHIP_ESP32 = 1, CHIP_ESP32C3 = 5, CHIP_ESP32S3 = 9 } esp_chip_model_t;

typedef struct {
    esp_chip_model_t model;
    uint32_t features;
    uint16_t revision;
    uint8_t cores;
} esp_chip_info_t;

extern "C" void esp_chip_info(esp_chip_info_t *info);
