// SPDX-License-Identifier: Apache-2.0
#include "ports/thread_executor.hpp"

#include <algorithm>
#include <utility>

namespace fleet::host {

ThreadExecutor::ThreadExecutor() : worker_([this] { work_through(); }) {}

ThreadExecutor::~ThreadExecutor() {
    stop();
    join();
}

void ThreadExecutor::post(std::function<void()> fn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(fn));
    ready_.notify_one();
}

void ThreadExecutor::post_after(std::uint32_t ms, std::function<void()> fn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Time due = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    timers_.push_back({due, order_++, std::move(fn)});
    std::push_heap(timers_.begin(), timers_.end(), Later{});
    ready_.notify_one();
}

void ThreadExecutor::work(std::function<void()> fn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(fn));
    jobs_ready_.notify_one();
}

void ThreadExecutor::stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    ready_.notify_all();
    jobs_ready_.notify_all();
}

void ThreadExecutor::join() {
    if (worker_.joinable()) worker_.join();
}

void ThreadExecutor::run() {
    while (auto fn = next())
        fn();
}

void ThreadExecutor::promote_due() {
    const Time now = std::chrono::steady_clock::now();
    while (!timers_.empty() && timers_.front().due <= now) {
        std::pop_heap(timers_.begin(), timers_.end(), Later{});
        queue_.push_back(std::move(timers_.back().fn));
        timers_.pop_back();
    }
}

std::function<void()> ThreadExecutor::next() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        if (stopped_) return nullptr;
        promote_due();
        if (!queue_.empty()) break;
        if (timers_.empty()) {
            ready_.wait(lock);
        } else {
            const Time due = timers_.front().due;  // a copy: the heap moves while we wait
            ready_.wait_until(lock, due);
        }
    }
    auto fn = std::move(queue_.front());
    queue_.pop_front();
    return fn;
}

void ThreadExecutor::work_through() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        jobs_ready_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
        if (stopped_) return;
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        job = nullptr;  // its captures die outside of the lock
        lock.lock();
    }
}

}  // namespace fleet::host
