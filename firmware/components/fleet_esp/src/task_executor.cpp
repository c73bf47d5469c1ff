// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/task_executor.hpp"

#include "guard.hpp"

#include "esp_log.h"
#include "esp_task_wdt.h"
#include "esp_timer.h"

#include <algorithm>
#include <utility>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "executor";
constexpr std::uint32_t executor_stack = 8192;  // signing takes 3.2 KB
constexpr std::uint32_t worker_stack = 8192;    // TLS and OTA run here
constexpr std::uint32_t link_stack = 5120;      // a write over TLS runs here
constexpr UBaseType_t executor_priority = 5;
constexpr UBaseType_t worker_priority = 4;
constexpr UBaseType_t link_priority = 5;
constexpr TickType_t watchdog_pace = pdMS_TO_TICKS(5000);

}  // namespace

Status TaskExecutor::start() {
    lock_ = xSemaphoreCreateMutex();
    if (lock_ == nullptr) return {Code::no_memory, "no memory for the executor's lock"};
    if (xTaskCreate(run, "fleet", executor_stack, this, executor_priority, &task_) != pdPASS ||
        xTaskCreate(run_worker, "fleet_work", worker_stack, this, worker_priority, &worker_) != pdPASS ||
        xTaskCreate(run_link, "fleet_link", link_stack, this, link_priority, &link_) != pdPASS) {
        return {Code::no_memory, "no memory for the executor's tasks"};
    }
    return {};
}

void TaskExecutor::run(void *self) {
    esp_task_wdt_add(nullptr);
    for (;;)
        static_cast<TaskExecutor *>(self)->turn(watchdog_pace);
}

void TaskExecutor::run_worker(void *self) {
    esp_task_wdt_add(nullptr);
    for (;;)
        static_cast<TaskExecutor *>(self)->turn_worker(watchdog_pace);
}

// Not watched: looking a name up, connecting and TLS may hold it longer than the
// watchdog allows. Hours without a broker restart the device.
void TaskExecutor::run_link(void *self) {
    for (;;)
        static_cast<TaskExecutor *>(self)->turn_link(portMAX_DELAY);
}

void TaskExecutor::put(Queue &queue, TaskHandle_t reader, std::function<void()> fn) {
    {
        const Guard guard(lock_);
        queue.push_back(std::move(fn));
    }
    // A task that has not started yet looks at its queue before it first waits.
    if (reader != nullptr) xTaskNotifyGive(reader);
}

void TaskExecutor::post(std::function<void()> fn) {
    put(ready_, task_, std::move(fn));
}

void TaskExecutor::work(std::function<void()> fn) {
    put(jobs_, worker_, std::move(fn));
}

void TaskExecutor::link(std::function<void()> fn) {
    put(calls_, link_, std::move(fn));
}

void TaskExecutor::post_after(std::uint32_t ms, std::function<void()> fn) {
    Later later{esp_timer_get_time() + std::int64_t{ms} * 1000, std::move(fn)};
    {
        const Guard guard(lock_);
        // Before its equals, hence run after them: first posted, first run.
        const auto place = std::lower_bound(later_.begin(), later_.end(), later,
                                            [](const Later &a, const Later &b) { return a.due_us > b.due_us; });
        later_.insert(place, std::move(later));
    }
    if (task_ != nullptr) xTaskNotifyGive(task_);  // it may be waiting for longer than this
}

std::function<void()> TaskExecutor::take(Queue &queue) {
    const Guard guard(lock_);
    if (queue.empty()) return nullptr;
    std::function<void()> fn = std::move(queue.front());
    queue.pop_front();
    return fn;
}

void TaskExecutor::collect_due() {
    const std::int64_t now = esp_timer_get_time();
    const Guard guard(lock_);
    while (!later_.empty() && later_.back().due_us <= now) {
        ready_.push_back(std::move(later_.back().fn));
        later_.pop_back();
    }
}

TickType_t TaskExecutor::until_next(TickType_t longest) {
    const Guard guard(lock_);
    if (!ready_.empty()) return 0;
    if (later_.empty()) return longest;
    const std::int64_t us = std::max<std::int64_t>(later_.back().due_us - esp_timer_get_time(), 0);
    // Rounded up: a wait that ends a tick early would spin until the time has come.
    return std::min<std::int64_t>(longest, pdMS_TO_TICKS((us + 999) / 1000) + 1);
}

void TaskExecutor::turn(TickType_t longest) {
    esp_task_wdt_reset();
    collect_due();
    if (const auto fn = take(ready_)) return fn();
    ulTaskNotifyTake(pdTRUE, until_next(longest));
}

void TaskExecutor::turn_worker(TickType_t longest) {
    esp_task_wdt_reset();
    if (const auto fn = take(jobs_)) {
        fn();
        ESP_LOGD(TAG, "a job is done");
        return;
    }
    ulTaskNotifyTake(pdTRUE, longest);
}

void TaskExecutor::turn_link(TickType_t longest) {
    if (const auto fn = take(calls_)) return fn();
    ulTaskNotifyTake(pdTRUE, longest);
}

}  // namespace fleet::esp
