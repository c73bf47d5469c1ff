// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"

namespace fleet::esp {

// Guard holds a mutex as long as it lives.
class Guard {
public:
    explicit Guard(SemaphoreHandle_t lock) : lock_(lock) { xSemaphoreTake(lock_, portMAX_DELAY); }
    ~Guard() { xSemaphoreGive(lock_); }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

private:
    SemaphoreHandle_t lock_;
};

}  // namespace fleet::esp
