// SPDX-License-Identifier: Apache-2.0
// The Executor on Linux: run() on the calling thread, and one worker.
#pragma once

#include "fleet/ports.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace fleet::host {

class ThreadExecutor final : public Executor {
public:
    ThreadExecutor();
    ~ThreadExecutor() override;

    void post(std::function<void()> fn) override;
    void post_after(std::uint32_t ms, std::function<void()> fn) override;
    void work(std::function<void()> fn) override;

    void run();   // until stop
    void stop();  // from any thread
    void join();  // the worker, after the job it is in

private:
    using Time = std::chrono::steady_clock::time_point;
    struct Timer {
        Time due;
        std::uint64_t order;  // equal times run in the order they were posted
        std::function<void()> fn;
    };
    struct Later {
        bool operator()(const Timer &a, const Timer &b) const {
            return a.due != b.due ? a.due > b.due : a.order > b.order;
        }
    };

    std::function<void()> next();
    void promote_due();
    void work_through();

    std::mutex mutex_;
    std::condition_variable ready_, jobs_ready_;
    std::deque<std::function<void()>> queue_, jobs_;
    std::vector<Timer> timers_;  // a heap by Later
    std::uint64_t order_ = 0;
    bool stopped_ = false;
    std::thread worker_;
};

}  // namespace fleet::host
