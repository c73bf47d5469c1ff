// SPDX-License-Identifier: Apache-2.0
// What a unit sends unasked, from machines in a known state, byte for byte. The
// server's parsers read the same table. A change on purpose:
//   FLEET_WRITE_VECTORS=1 core_tests --test-case="notifications*"
#include "fleet/tools/toolkit.hpp"
#include "machine.hpp"
#include "vectors.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

using namespace fleet;
using namespace fleet::test;

namespace {

const char boot_url[] = "https://fleet.example.org/ota";
const char vectors_file[] = "notifications.json";

struct Dump : CoreDump {
    bool present() const override { return true; }
    std::uint32_t size() const override { return 4096; }
    Status read(std::uint32_t, MutableBytes) const override { return {}; }
    std::string summary() const override { return "task fleet"; }
    Status erase() override { return {}; }
};

// Device is one from its start on, in a world that stands still.
struct Device {
    explicit Device(bool timed = true) {
        const std::string time = timed ? ",\"server_time\":{\"timestamp\":1795262462000,\"timezone_offset\":480}" : "";
        m.http.answers[boot_url] = {
            {200, "{\"mqtt\":{\"endpoint\":\"broker:1883\",\"publish_topic\":\"up\"}" + time + "}", false}};
    }
    void start() {
        UnitOptions options;
        options.poll_url = boot_url;
        unit = std::make_unique<Unit>(m.machine, options);
        kit.machine = &m.machine;
        kit.unit = unit.get();
        kit.with_log = [this](FunctionRef<void(LogRing &)> use) { use(log); };
        REQUIRE(add_all_tools(unit->tools(), kit, false).ok());
        unit->start();
        m.executor.settle();
    }
    void connect() {
        m.transport.connect();
        m.executor.run_for(1'000);
    }
    void online() {
        start();
        connect();
        m.transport.sent.clear();
    }
    // last is what was sent last, of a method.
    std::string last(const char *method) const {
        std::string found;
        for (const std::string &s : m.transport.sent) {
            if (s.find(method) != std::string::npos) found = s;
        }
        return found;
    }
    std::string job(const JobReport &report) {
        online();
        unit->report(report);
        return last("notifications/job");
    }
    std::string configure(const char *json) {
        online();
        const Result<JsonDocument> d = JsonDocument::parse(json);
        REQUIRE_FALSE(unit->configure(d.value().root()).refused());
        return last("notifications/config");
    }
    FakeMachine m;
    alignas(8) std::array<std::uint8_t, 256> memory{};
    LogRing log{{memory.data(), memory.size()}};
    Toolkit kit;
    std::unique_ptr<Unit> unit;
};

const char settings_answer[] =
    "{\"version\":4,\"values\":{\"heartbeat_s\":30,\"log_level\":\"warn\",\"url_hosts\":\"a.example\"}}";

std::string birth() {
    Device d;
    d.start();
    d.connect();
    return d.last("telemetry");
}

std::string heartbeat_after_crashes() {
    Device d;
    Dump dump;
    d.m.machine.core_dump = &dump;
    d.m.system.reason = ResetReason::panic;
    d.m.store.values = {{"i:boots", "11"}, {"i:crashes", "2"}};
    d.m.updater.slots[0].info.state = SlotState::pending_verify;
    d.m.network.name = "caf\xC3\xA9 \"1\"";
    d.online();
    d.m.executor.run_for(70'000);
    return d.last("telemetry");
}

std::string heartbeat_kept_offline() {
    Device d;
    d.start();
    d.m.transport.startable = false;
    d.m.executor.run_for(70'000);
    d.connect();
    for (const std::string &s : d.m.transport.sent) {
        if (s.find("birth") == std::string::npos) return s;
    }
    return "";
}

std::string heartbeat_with_stacks() {
    Device d;
    d.m.system.tasks = {{"fleet", 2100}, {"fleet_work", 1480}, {"IDLE0", 612}};
    d.start();
    d.connect();
    return d.last("telemetry");
}

std::string birth_without_clock_or_network() {
    Device d(false);
    d.m.machine.network = nullptr;
    d.start();
    d.connect();
    return d.last("telemetry");
}

std::string config_confirmed() {
    Device d;
    d.configure(settings_answer);
    d.m.executor.run_for(120'000);
    return d.last("notifications/config");
}

std::string config_taken_back() {
    Device d;
    d.configure(settings_answer);
    d.m.transport.drop();
    d.m.executor.run_for(120'000);
    d.connect();
    return d.last("notifications/config");
}

std::string log_lines() {
    Device d;
    d.online();
    d.m.transport.say(
        "{\"type\":\"mcp\",\"scope\":\"operator\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\","
        "\"params\":{\"name\":\"self.logs.stream\",\"arguments\":{\"seconds\":60,\"level\":\"info\"}}}}");
    for (int i = 0; i < 9; i++)  // more than the memory holds
        d.log.write(LogLevel::warn, "wifi", "beacon lost " + std::to_string(i) + " \"\x01\" caf\xC3\xA9", 2000 + i);
    d.log.write(LogLevel::debug, "wifi", "not asked for", 3000);
    d.log.write(LogLevel::error, "", "", 4000);
    d.m.executor.run_for(1'000);
    return d.last("notifications/log");
}

struct Case {
    const char *name;
    std::string wire;
};

std::vector<Case> all_cases() {
    return {
        {"telemetry: birth", birth()},
        {"telemetry: on trial after crashes", heartbeat_after_crashes()},
        {"telemetry: kept while offline", heartbeat_kept_offline()},
        {"telemetry: stacks", heartbeat_with_stacks()},
        {"telemetry: no clock, no network", birth_without_clock_or_network()},
        {"job: accepted",
         Device().job({"01a1fc6b-6015-711c-9d5d-5b739ab112aa.2", "upgrade", JobState::accepted, 0, {}})},
        {"job: progress", Device().job({"j", "upgrade", JobState::progress, 45, {}})},
        {"job: done", Device().job({"j", "rollback", JobState::done, 0, {}})},
        {"job: failed",
         Device().job({"j", "upgrade", JobState::failed, 0, {Code::corrupt, "the SHA-256 is not the stated one"}})},
        {"job: failed, no clock", Device(false).job({"j", "upgrade", JobState::failed, 0, {Code::io, "\"\n\\"}})},
        {"config: on trial", Device().configure(settings_answer)},
        {"config: confirmed", config_confirmed()},
        {"config: taken back", config_taken_back()},
        {"log: lines, after some that were lost", log_lines()},
    };
}

std::string quoted(std::string_view text) {
    std::vector<char> buffer(text.size() * 2 + 16);
    JsonWriter w(buffer.data(), buffer.size());
    w.text(text);
    REQUIRE_FALSE(w.overflow());
    return std::string(w.view());
}

void write_vectors(const std::vector<Case> &cases) {
    std::string text =
        "{\n \"about\": \"What the included firmware sends unasked, byte for byte. wire is a whole message.\",\n"
        " \"cases\": [";
    const char *comma = "";
    for (const Case &c : cases) {
        text += std::string(comma) + "\n  {\n   \"name\": " + quoted(c.name) + ",\n   \"wire\": " + quoted(c.wire) +
                "\n  }";
        comma = ",";
    }
    text += "\n ]\n}\n";
    std::FILE *file = std::fopen(vectors_path(vectors_file).c_str(), "wb");
    REQUIRE(file != nullptr);
    CHECK(std::fwrite(text.data(), 1, text.size(), file) == text.size());
    CHECK(std::fclose(file) == 0);
}

}  // namespace

TEST_SUITE("vectors") {
    TEST_CASE("notifications, byte for byte") {
        const std::vector<Case> cases = all_cases();
        if (std::getenv("FLEET_WRITE_VECTORS") != nullptr) write_vectors(cases);
        const JsonDocument doc = load_vectors(vectors_file);
        JsonView want = doc.root().member("cases").first();
        for (const Case &c : cases) {
            REQUIRE(want.exists());
            CHECK(want.text("name") == c.name);
            CHECK_MESSAGE(want.text("wire") == c.wire, c.name);
            CHECK(scan_json(c.wire, {}).ok());
            want = want.next();
        }
        CHECK_FALSE(want.exists());
    }
}
