// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include "esp_task_wdt.h"
#include "esp_timer.h"
#include "freertos/semphr.h"
#include "freertos/task.h"

#include <sys/time.h>
#include <algorithm>
#include <cstdlib>

namespace fake::rtos {

std::int64_t now_us = 0;
int tasks = 0;
int tasks_to_refuse = 0;
std::map<std::string, std::uint32_t> stacks;
void *current = nullptr;
int watchdog_feeds = 0;
std::int64_t last_feed_us = 0, longest_unfed_us = 0;
std::int64_t longest_turn_us = 0;
std::int64_t waited_us = 0;  // in ulTaskNotifyTake
int notified = 0;
std::int64_t date_us = 0;  // of the system's clock, at now_us 0

namespace {

// pass_until ends early when a task is notified, if asked to.
void pass_until(std::int64_t until, bool wakes) {
    while (mqtt::turn_before(until)) {
        if (wakes && notified > 0) return;
    }
    now_us = std::max(now_us, until);
}

void turn(fleet::esp::TaskExecutor &executor, TickType_t longest) {
    const std::int64_t begin = now_us - waited_us;
    executor.turn(longest);
    longest_turn_us = std::max(longest_turn_us, now_us - waited_us - begin);
}

}  // namespace

void pass(std::int64_t us) {
    pass_until(now_us + us, false);
}

void run(fleet::esp::TaskExecutor &executor, std::uint32_t ms) {
    const std::int64_t until = now_us + std::int64_t{ms} * 1000;
    do {
        const auto left = static_cast<TickType_t>((until - now_us) / 1000);
        executor.turn_worker(0);
        executor.turn_link(0);
        turn(executor, left);
    } while (now_us < until);
    for (int i = 0; i < 16; ++i) {  // what has become due just now
        executor.turn_worker(0);
        executor.turn_link(0);
        turn(executor, 0);
    }
}

}  // namespace fake::rtos

using namespace fake::rtos;

struct tskTaskControlBlock {};

// A mutex or a binary semaphore. Nothing of the firmware ever deletes one.
struct QueueDefinition {
    int count;
};
static std::deque<QueueDefinition> semaphores;

extern "C" {

int64_t esp_timer_get_time(void) {
    return now_us;
}

BaseType_t xTaskCreate(TaskFunction_t, const char *, uint32_t, void *, UBaseType_t, TaskHandle_t *handle) {
    static tskTaskControlBlock block;
    if (tasks_to_refuse > 0) return pdFALSE;
    ++tasks;
    if (handle != nullptr) *handle = &block;
    return pdPASS;
}
TaskHandle_t xTaskGetCurrentTaskHandle(void) {
    return static_cast<TaskHandle_t>(current);
}
UBaseType_t uxTaskGetNumberOfTasks(void) {
    return static_cast<UBaseType_t>(stacks.size());
}
UBaseType_t uxTaskGetSystemState(TaskStatus_t *list, UBaseType_t room, uint32_t *) {
    if (room < stacks.size()) return 0;
    UBaseType_t count = 0;
    for (const auto &[name, never_used] : stacks)
        list[count++] = {nullptr, name.c_str(), never_used};
    return count;
}
void vTaskDelay(TickType_t ticks) {
    pass(std::int64_t{ticks} * 1000);
}
BaseType_t xTaskNotifyGive(TaskHandle_t) {
    ++notified;
    return pdPASS;
}
uint32_t ulTaskNotifyTake(BaseType_t, TickType_t wait) {
    const std::int64_t begin = now_us;
    if (notified == 0) pass_until(now_us + std::int64_t{wait} * 1000, true);
    waited_us += now_us - begin;
    const int count = notified;
    notified = 0;
    return static_cast<uint32_t>(count);
}

// There is one thread: taking one that is taken is a
// dead-lock on the device, and an end of the test here.
SemaphoreHandle_t xSemaphoreCreateMutex(void) {
    return &semaphores.emplace_back(QueueDefinition{1});
}
SemaphoreHandle_t xSemaphoreCreateBinary(void) {
    return &semaphores.emplace_back(QueueDefinition{0});
}
BaseType_t xSemaphoreTake(SemaphoreHandle_t semaphore, TickType_t wait) {
    if (semaphore->count == 0) {
        if (wait == portMAX_DELAY) std::abort();
        pass(std::int64_t{wait} * 1000);
        return pdFALSE;
    }
    --semaphore->count;
    return pdTRUE;
}
BaseType_t xSemaphoreGive(SemaphoreHandle_t semaphore) {
    semaphore->count = 1;
    return pdTRUE;
}
BaseType_t xSemaphoreGiveFromISR(SemaphoreHandle_t semaphore, BaseType_t *woken) {
    *woken = pdTRUE;
    return xSemaphoreGive(semaphore);
}

esp_err_t esp_task_wdt_add(TaskHandle_t) {
    return ESP_OK;
}
esp_err_t esp_task_wdt_reset(void) {
    ++watchdog_feeds;
    longest_unfed_us = std::max(longest_unfed_us, now_us - last_feed_us);
    last_feed_us = now_us;
    return ESP_OK;
}

// The build renames these two: a test never touches the machine's own clock.
int fake_settimeofday(const struct timeval *tv, const struct timezone *) {
    date_us = std::int64_t{tv->tv_sec} * 1000000 + tv->tv_usec - now_us;
    return 0;
}
int fake_gettimeofday(struct timeval *tv, void *) {
    const std::int64_t us = date_us + now_us;
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}
}
