// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "freertos/FreeRTOS.h"

typedef struct QueueDefinition *SemaphoreHandle_t;

extern "C" {
SemaphoreHandle_t xSemaphoreCreateMutex(void);
SemaphoreHandle_t xSemaphoreCreateBinary(void);
BaseType_t xSemaphoreTake(SemaphoreHandle_t semaphore, TickType_t wait);
BaseType_t xSemaphoreGive(SemaphoreHandle_t semaphore);
BaseType_t xSemaphoreGiveFromISR(SemaphoreHandle_t semaphore, BaseType_t *woken);
}
