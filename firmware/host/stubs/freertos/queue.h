// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

#include "freertos/FreeRTOS.h"

typedef struct QueueDefinition *QueueHandle_t;
