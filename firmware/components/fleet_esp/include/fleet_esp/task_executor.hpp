// SPDX-License-Identifier: Apache-2.0
// The Executor as three FreeRTOS tasks: one that runs the core, one for jobs
// that block, one for calls of esp-mqtt.
#pragma once

#include "fleet/ports.hpp"

#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"
#include "freertos/task.h"

#include <deque>
#include <vector>

namespace fleet::esp {

class TaskExecutor final : public Executor {
public:
    Status start();

    void post(std::function<void()> fn) override;
    void post_after(std::uint32_t ms, std::function<void()> fn) override;
    void work(std::function<void()> fn) override;
    // link runs fn on the task that talks to the broker, in order. Any call of
    // esp-mqtt may wait 10 s and more for a lock that its own task holds while
    // it connects, or while TCP takes no more bytes.
    void link(std::function<void()> fn);

    // One turn of each task's loop: wait for something to do, at most so long,
    // and do it. The tasks call these for ever; tests call them by hand.
    void turn(TickType_t longest);
    void turn_worker(TickType_t longest);
    void turn_link(TickType_t longest);

private:
    struct Later {
        std::int64_t due_us;
        std::function<void()> fn;
    };
    using Queue = std::deque<std::function<void()>>;

    static void run(void *self);
    static void run_worker(void *self);
    static void run_link(void *self);
    void put(Queue &queue, TaskHandle_t reader, std::function<void()> fn);
    std::function<void()> take(Queue &queue);
    void collect_due();
    TickType_t until_next(TickType_t longest);

    SemaphoreHandle_t lock_ = nullptr;  // guards the queues and later_
    TaskHandle_t task_ = nullptr;
    TaskHandle_t worker_ = nullptr;
    TaskHandle_t link_ = nullptr;
    Queue ready_;
    Queue jobs_;
    Queue calls_;
    std::vector<Later> later_;  // latest first, so that the next one is at the back
};

}  // namespace fleet::esp
