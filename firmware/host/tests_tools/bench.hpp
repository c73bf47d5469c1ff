// SPDX-License-Identifier: Apache-2.0
// A unit with its tools on real ports, whose executor is pumped by the test and
// whose broker is the test.
#pragma once

#include "device/log.hpp"
#include "fleet/camera_tool.hpp"
#include "fleet/tools/toolkit.hpp"
#include "fleet/unit.hpp"
#include "ports/canvas_display.hpp"
#include "ports/curl_http.hpp"
#include "ports/file_core_dump.hpp"
#include "ports/file_store.hpp"
#include "ports/fixed_parts.hpp"
#include "ports/openssl_crypto.hpp"
#include "ports/posix_clock.hpp"
#include "ports/posix_system.hpp"
#include "ports/synthetic_camera.hpp"
#include "slots.hpp"
#include "stub_fleet.hpp"

#include <deque>

namespace fleet::test {

// What is to run later than at once waits for later().
class PumpedExecutor final : public Executor {
public:
    void post(std::function<void()> fn) override { queue_.push_back(std::move(fn)); }
    void post_after(std::uint32_t ms, std::function<void()> fn) override {
        ms == 0 ? post(std::move(fn)) : later_.push_back(std::move(fn));
    }
    // later runs what is due at any time, once.
    void later() {
        queue_.insert(queue_.end(), later_.begin(), later_.end());
        later_.clear();
        pump();
    }
    void work(std::function<void()> fn) override { post(std::move(fn)); }
    void pump() {
        while (!queue_.empty()) {
            const auto fn = std::move(queue_.front());
            queue_.pop_front();
            fn();
        }
    }

private:
    std::deque<std::function<void()>> queue_, later_;
};

class TestTransport final : public Transport {
public:
    Status start(const BrokerSettings &, std::string_view, std::string_view) override { return {}; }
    void stop(bool) override {}
    Status publish(std::string_view, Bytes payload, int, bool) override {
        sent.emplace_back(payload.text());
        return {};
    }
    std::vector<std::string> sent;
};

class Bench {
public:
    enum class Parts { all, none, safe_mode };
    explicit Bench(Parts parts = Parts::all);

    // call makes a tools/call as an operator and gives the whole answer.
    std::string call(const std::string &tool, const std::string &arguments = "{}", bool as_operator = true);
    // list gives all pages of tools/list, one after another.
    std::string list(bool with_user_tools = true);
    std::string request(const std::string &method, const std::string &params, bool as_operator = true);

    Flash flash;
    StubFleet fleet{""};
    PumpedExecutor executor;
    TestTransport transport;
    host::PosixClock clock;
    host::CurlHttp http{{"", 2, 2, 5, 5}};
    host::FileStore store{flash.dir.path()};
    host::Booted booted = flash.boot();
    host::SlotUpdater updater = host::SlotUpdater({flash.dir.path(), chip_s3, slot_size, 0}, booted);
    host::PosixSystem system;
    host::FixedNetwork network{true, "127.0.0.1"};
    host::FileCoreDump core_dump{flash.dir / "coredump.bin"};
    host::OpensslCrypto crypto;
    host::CanvasDisplay display{{160, 120, false, true, {}, ""}};
    host::StoredSpeaker speaker;
    host::StoredLed led;
    host::FixedBattery battery;
    host::SyntheticCamera camera{clock};
    host::Log log{flash.dir / "log.ring", true, [] { return 1u; }};
    Machine machine;
    std::unique_ptr<Unit> unit;
    Toolkit kit;
    CameraTool camera_tool;

private:
    int next_id_ = 1;
};

}  // namespace fleet::test
