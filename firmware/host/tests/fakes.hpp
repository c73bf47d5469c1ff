// SPDX-License-Identifier: Apache-2.0
// Machines for tests: time and chance are in the hands of the test, posted work
// runs when it says so.
#pragma once

#include "fleet/ports.hpp"

#include <deque>
#include <map>
#include <string>
#include <vector>

namespace fleet::test {

class FakeClock : public Clock {
public:
    std::int64_t mono_us() const override { return us; }
    std::int64_t unix_ms() const override { return is_synced ? unix_at_boot + us / 1000 : 0; }
    bool synced() const override { return is_synced; }
    void set_unix_ms(std::int64_t ms, std::int32_t zone) override {
        unix_at_boot = ms - us / 1000;
        zone_minutes = zone;
        is_synced = true;
    }

    std::int64_t us = 0;
    std::int64_t unix_at_boot = 0;
    std::int32_t zone_minutes = 0;
    bool is_synced = false;
};

// FakeExecutor runs everything on the test's thread, in order of time.
class FakeExecutor : public Executor {
public:
    explicit FakeExecutor(FakeClock &clock) : clock_(clock) {}
    void post(std::function<void()> fn) override { post_after(0, std::move(fn)); }
    void post_after(std::uint32_t ms, std::function<void()> fn) override {
        due_.emplace(clock_.us + std::int64_t{ms} * 1000, std::move(fn));
    }
    void work(std::function<void()> fn) override { post_after(0, std::move(fn)); }

    // run_for lets so much time pass and runs what falls due meanwhile.
    void run_for(std::int64_t ms);
    void settle() { run_for(0); }
    std::size_t waiting() const { return due_.size(); }
    void forget() { due_.clear(); }  // what a power cut does

private:
    FakeClock &clock_;
    std::multimap<std::int64_t, std::function<void()>> due_;
};

class FakeStore : public KvStore {
public:
    Result<std::int64_t> get_int(std::string_view key) override;
    Result<std::string> get(std::string_view key) override;
    Status set_int(std::string_view key, std::int64_t value) override;
    Status set(std::string_view key, std::string_view value) override;
    Status erase(std::string_view key) override;
    Status commit() override;

    std::map<std::string, std::string> values;
    bool full = false;  // every write fails
    int writes = 0;
    bool dirty = false;  // there is something that no commit made safe

    std::function<bool()> powerless;  // asked at each step: true once the power is cut

private:
    Status write(std::string_view key, std::string_view value);
};

}  // namespace fleet::test
