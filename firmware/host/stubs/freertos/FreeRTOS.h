// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "sdkconfig.h"

#include <stdint.h>

typedef int BaseType_t;
typedef unsigned int UBaseType_t;
typedef uint32_t TickType_t;

#define pdFALSE 0
#define pdTRUE 1
#define pdPASS 1
#define portMAX_DELAY ((TickType_t)0xffffffffUL)
#define pdMS_TO_TICKS(ms) ((TickType_t)(((uint64_t)(ms) * CONFIG_FREERTOS_HZ) / 1000U))
#define configMAX_PRIORITIES 25
#define tskNO_AFFINITY 0x7fffffff
