// SPDX-License-Identifier: Apache-2.0
// A download on a real worker thread, for the race detector: the only part of
// the core that leaves the executor.
#include "fleet/ota_flow.hpp"
#include "machine.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

using namespace fleet;
using namespace fleet::test;

namespace {

// ThreadExecutor runs work on another thread, and the rest when pumped.
class ThreadExecutor : public Executor {
public:
    ~ThreadExecutor() override {
        if (worker_.joinable()) worker_.join();
    }
    void post(std::function<void()> fn) override {
        const std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back(std::move(fn));
        arrived_.notify_one();
    }
    void post_after(std::uint32_t, std::function<void()> fn) override { post(std::move(fn)); }
    void work(std::function<void()> fn) override {
        if (worker_.joinable()) worker_.join();
        worker_ = std::thread(std::move(fn));
    }
    void pump_until(const bool &done) {
        while (!done) {
            std::unique_lock<std::mutex> lock(mutex_);
            arrived_.wait(lock, [this] { return !queue_.empty(); });
            auto fn = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            fn();
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<std::function<void()>> queue_;
    std::thread worker_;
};

}  // namespace

TEST_SUITE("thread") {
    TEST_CASE("an upgrade that is cut, continued and reported") {
        ThreadExecutor executor;
        FakeMachine m;
        m.machine.executor = &executor;
        const std::string image = make_image("2.0.0");
        m.http.files["http://h/fw"] = image;
        m.http.cut_at = {100'000};
        OtaFlow flow(m.machine, {});
        bool done = false;
        int reports = 0;
        flow.on_report = [&](const JobReport &) { reports++; };
        flow.before_restart = [&] { done = true; };
        FirmwareOrder o;
        o.url = "http://h/fw";
        REQUIRE(flow.start(o, "j").ok());
        executor.pump_until(done);
        CHECK(reports > 10);
        CHECK(m.updater.slots[1].bytes == image);
    }

    TEST_CASE("canceled from the executor while the worker runs") {
        ThreadExecutor executor;
        FakeMachine m;
        m.machine.executor = &executor;
        m.http.files["http://h/fw"] = make_image("2.0.0");
        m.http.piece = 100;
        std::atomic<bool> canceled{false};
        m.http.on_piece = [&] {
            while (!canceled)
                std::this_thread::yield();
        };
        OtaFlow flow(m.machine, {});
        bool done = false;
        flow.on_report = [&](const JobReport &r) { done = done || r.state == JobState::failed; };
        flow.before_restart = [&] { done = true; };
        FirmwareOrder o;
        o.url = "http://h/fw";
        REQUIRE(flow.start(o, "j").ok());
        flow.cancel();
        canceled = true;
        executor.pump_until(done);
        CHECK(flow.state() == OtaState::idle);
    }
}
