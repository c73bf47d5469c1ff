// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "freertos/FreeRTOS.h"

typedef struct tskTaskControlBlock *TaskHandle_t;
typedef void (*TaskFunction_t)(void *);

// The fields that are used; the real structure has more. It needs
// CONFIG_FREERTOS_USE_TRACE_FACILITY.
typedef struct xTASK_STATUS {
    TaskHandle_t xHandle;
    const char *pcTaskName;
    uint32_t usStackHighWaterMark;
} TaskStatus_t;

extern "C" {
UBaseType_t uxTaskGetNumberOfTasks(void);
UBaseType_t uxTaskGetSystemState(TaskStatus_t *tasks, UBaseType_t room, uint32_t *run_time);
// In ESP-IDF the depth is in bytes.
BaseType_t xTaskCreate(TaskFunction_t code, const char *name, uint32_t stack_depth, void *arg, UBaseType_t priority,
                       TaskHandle_t *handle);
void vTaskDelete(TaskHandle_t task);
void vTaskDelay(TickType_t ticks);
BaseType_t xTaskNotifyGive(TaskHandle_t task);
uint32_t ulTaskNotifyTake(BaseType_t clear, TickType_t wait);
TaskHandle_t xTaskGetCurrentTaskHandle(void);
}
