// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "freertos/FreeRTOS.h"

typedef struct QueueDefinition *QueueHandle_t;
