// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5, 6.0, from its documented use; not compared with the header yet. See README.md.
#pragma once

#include "freertos/FreeRTOS.h"

typedef struct QueueDefinition *QueueHandle_t;
