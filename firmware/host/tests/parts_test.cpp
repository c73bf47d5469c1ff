// SPDX-License-Identifier: Apache-2.0
// The small parts: back-off, outbox, log, crash loop, URLs, versions.
#include "fleet/backoff.hpp"
#include "fleet/crash_loop.hpp"
#include "fleet/job.hpp"
#include "fleet/log_ring.hpp"
#include "fleet/outbox.hpp"
#include "fleet/telemetry.hpp"
#include "fleet/url.hpp"
#include "fleet/version.hpp"
#include "machine.hpp"
#include "vectors.hpp"

#include <doctest/doctest.h>

#include <deque>

using namespace fleet;
using namespace fleet::test;

namespace {

std::string tail_of(const LogRing &ring, std::uint32_t from = 0, std::size_t most = 100, std::size_t capacity = 4096) {
    std::string buffer(capacity, '\0');
    JsonWriter w(buffer.data(), buffer.size());
    ring.tail(w, from, most);
    return std::string(w.view());
}

std::size_t lines_in(const std::string &json) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = json.find("\"n\":", at)) != std::string::npos; at++)
        n++;
    return n;
}

}  // namespace

TEST_SUITE("backoff") {
    TEST_CASE("9: waits grow to the most, with full jitter") {
        FakeSystem system;
        Backoff b(system);
        std::uint64_t most = 1'000;
        std::uint32_t smallest = UINT32_MAX;
        for (int i = 0; i < 2000; i++) {
            const std::uint32_t wait = b.next();
            CHECK(wait >= Backoff::floor_ms);
            CHECK(wait <= Backoff::floor_ms + most);
            if (most == 300'000) smallest = std::min(smallest, wait);
            most = std::min<std::uint64_t>(most * 2, 300'000);
        }
        CHECK(smallest < 5'000);  // full jitter reaches down to the floor
        CHECK(b.attempts() == 2000);
        b.reset();
        CHECK(b.next() <= Backoff::floor_ms + 1'000);
    }

    TEST_CASE("9: the bounds themselves are reached") {
        FakeSystem system;
        system.fixed_random = 0xff;
        CHECK(Backoff(system).next() == Backoff::floor_ms + 1'000);
        system.fixed_random = 0;
        CHECK(Backoff(system).next() == Backoff::floor_ms);
    }

    TEST_CASE("refused credentials never hammer") {
        FakeSystem system;
        Backoff b(system);
        for (int i = 0; i < 100; i++) {
            b.refused();
            CHECK(b.next() >= Backoff::refused_ms);
        }
    }

    TEST_CASE("a hint of the server holds once") {
        FakeSystem system;
        Backoff b(system);
        b.hold(30'000);
        CHECK(b.next() >= 30'000);
        b.reset();
        CHECK(b.next() <= Backoff::floor_ms + 1'000);
    }
}

TEST_SUITE("outbox") {
    TEST_CASE("what can be spared goes first, and never pushes out what is kept") {
        Outbox box(4 * 12);
        REQUIRE(box.push("outcome 00").ok());
        REQUIRE(box.push("beat 00000", Keep::spare).ok());
        REQUIRE(box.push("beat 00001", Keep::spare).ok());
        REQUIRE(box.push("outcome 01").ok());
        REQUIRE(box.push("beat 00002", Keep::spare).ok());  // instead of beat 0
        CHECK(box.dropped() == 1);
        REQUIRE(box.push("outcome 02").ok());
        REQUIRE(box.push("outcome 03").ok());
        CHECK(box.push("beat 00003", Keep::spare).code == Code::no_space);
        CHECK(box.dropped() == 4);
        for (const char *want : {"outcome 00", "outcome 01", "outcome 02", "outcome 03"}) {
            CHECK(box.front() == want);
            box.pop();
        }
        CHECK(box.empty());
    }

    TEST_CASE("first in, first out, and kept until popped") {
        Outbox box(64);
        CHECK(box.empty());
        CHECK(box.front().empty());
        box.pop();
        CHECK(box.push("one").ok());
        CHECK(box.push("").ok());
        CHECK(box.push("three").ok());
        CHECK(box.front() == "one");
        CHECK(box.front() == "one");
        box.pop();
        CHECK(box.front() == "");
        CHECK(box.count() == 2);
        box.pop();
        CHECK(box.front() == "three");
    }

    TEST_CASE("the oldest go first, counted; what could never fit is refused") {
        Outbox box(20);
        CHECK(box.push("aaaaaaaa").ok());
        CHECK(box.push("bbbbbbbb").ok());
        CHECK(box.push("cc").ok());
        CHECK(box.dropped() == 1);
        CHECK(box.front() == "bbbbbbbb");
        CHECK(box.push(std::string(19, 'x')).code == Code::no_space);
        CHECK(box.dropped() == 1);
        CHECK(box.push(std::string(18, 'x')).ok());
        CHECK(box.count() == 1);
        CHECK(box.dropped() == 3);
    }

    TEST_CASE("against a model, with any sizes") {
        Outbox box(200);
        std::deque<std::string> model;
        std::size_t bytes = 0;
        std::uint32_t seed = 7;
        for (int i = 0; i < 20000; i++) {
            seed = seed * 1664525 + 1013904223;
            if (seed >> 30 == 0 && !model.empty()) {
                REQUIRE(box.front() == model.front());
                bytes -= model.front().size() + 2;
                model.pop_front();
                box.pop();
                continue;
            }
            const std::string message((seed >> 16) % 60, static_cast<char>('a' + i % 26));
            while (bytes + message.size() + 2 > 200) {
                bytes -= model.front().size() + 2;
                model.pop_front();
            }
            model.push_back(message);
            bytes += message.size() + 2;
            REQUIRE(box.push(message).ok());
            REQUIRE(box.count() == model.size());
            REQUIRE(box.front() == model.front());
        }
    }
}

TEST_SUITE("log") {
    TEST_CASE("the last lines stay, numbered") {
        alignas(8) std::uint8_t memory[400] = {};
        LogRing ring({memory, sizeof memory});
        CHECK_FALSE(ring.survived());
        for (int i = 0; i < 100; i++)
            ring.write(LogLevel::info, "wifi", "line " + std::to_string(i), 10u * i);
        CHECK(ring.next() == 100);
        const std::string all = tail_of(ring);
        CHECK(all.find("{\"n\":99,\"t\":990,\"level\":\"info\",\"tag\":\"wifi\",\"text\":\"line 99\"}]") !=
              std::string::npos);
        CHECK(all.find("\"n\":" + std::to_string(ring.first()) + ",") == 2);
        CHECK(lines_in(all) == 100 - ring.first());
        CHECK(lines_in(tail_of(ring, 98)) == 2);
        CHECK(lines_in(tail_of(ring, 0, 3)) == 3);
        CHECK(tail_of(ring, 200) == "[]");
    }

    TEST_CASE("tail stops where the answer is full, and says where to go on") {
        alignas(8) std::uint8_t memory[1000] = {};
        LogRing ring({memory, sizeof memory});
        for (int i = 0; i < 10; i++)
            ring.write(LogLevel::warn, "t", "text\"\xff", 1);
        char buffer[200];
        JsonWriter w(buffer, sizeof buffer);
        const std::uint32_t next = ring.tail(w, 0, 100);
        CHECK(next == lines_in(std::string(w.view())));
        CHECK(next > 0);
        CHECK_FALSE(w.overflow());
        CHECK(scan_json(w.view(), {}).ok());
    }

    TEST_CASE("levels, by tag too") {
        alignas(8) std::uint8_t memory[1000] = {};
        LogRing ring({memory, sizeof memory});
        ring.write(LogLevel::debug, "a", "no", 1);
        ring.set_level(LogLevel::error);
        ring.write(LogLevel::info, "a", "no", 1);
        CHECK(ring.set_tag_level("a", LogLevel::debug));
        CHECK(ring.set_tag_level("a", LogLevel::verbose));
        ring.write(LogLevel::verbose, "a", "yes", 1);
        ring.write(LogLevel::info, "b", "no", 1);
        ring.write(LogLevel::none, "a", "no", 1);
        CHECK(ring.next() == 1);
        for (int i = 0; i < 7; i++)
            CHECK(ring.set_tag_level("tag" + std::to_string(i), LogLevel::info));
        CHECK_FALSE(ring.set_tag_level("one more", LogLevel::info));
        CHECK(parse_log_level("verbose") == LogLevel::verbose);
        CHECK(parse_log_level("loud") == LogLevel::info);
        CHECK(std::string(to_string(LogLevel::error)) == "error");
    }

    TEST_CASE("lines survive a restart, and damage is noticed") {
        alignas(8) std::uint8_t memory[600] = {};
        {
            LogRing ring({memory, sizeof memory});
            for (int i = 0; i < 50; i++)
                ring.write(LogLevel::info, "tag", std::string(30, 'x'), 1);
        }
        const std::string before = tail_of(LogRing({memory, sizeof memory}));
        CHECK(LogRing({memory, sizeof memory}).survived());
        CHECK(lines_in(before) > 3);
        constexpr std::size_t head = 24;  // with the numbers that lines cannot prove
        for (std::size_t bit = 0; bit < 8 * sizeof memory; bit++) {
            alignas(8) std::uint8_t copy[600];
            std::copy(std::begin(memory), std::end(memory), copy);
            copy[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
            LogRing ring({copy, sizeof copy});
            CHECK_MESSAGE((bit >= 8 * head || !ring.survived()), bit);
            ring.write(LogLevel::info, "tag", "goes on", 1);  // must not read or write elsewhere
            CHECK(scan_json(tail_of(ring, 0, 100, 8000), {}).ok());
        }
        CHECK_FALSE(LogRing({memory, sizeof memory - 8}).survived());  // of a firmware with another size
    }

    TEST_CASE("a ring that is full to the last byte survives, too") {
        alignas(8) std::uint8_t memory[400];
        for (std::size_t size = 300; size < sizeof memory; size += 4) {
            std::fill(std::begin(memory), std::end(memory), std::uint8_t{0});
            LogRing ring({memory, size});
            for (int i = 0; i < 50; i++)
                ring.write(LogLevel::info, "tag", "0123456789abc", 1);
            const LogRing again({memory, size});
            CHECK_MESSAGE(again.survived(), size);
            CHECK(again.next() == 50);
        }
    }

    TEST_CASE("long lines are cut, and never lie about their length") {
        alignas(8) std::uint8_t memory[512] = {};
        LogRing ring({memory, sizeof memory});
        ring.write(LogLevel::info, std::string(100, 't'), std::string(5000, 'x'), 1);
        CHECK(tail_of(ring).find(std::string(LogRing::max_line, 'x') + "\"") != std::string::npos);
        CHECK(tail_of(ring).find("\"tag\":\"" + std::string(15, 't') + "\"") != std::string::npos);
        alignas(8) std::uint8_t tiny[40] = {};
        LogRing small({tiny, sizeof tiny});
        small.write(LogLevel::info, "t", "does not fit at all", 1);
        CHECK(small.next() == 0);
    }
}

TEST_SUITE("crash_loop") {
    TEST_CASE("three crashes in a row mean safe mode, five quiet minutes end it") {
        FakeMachine m;
        m.system.reason = ResetReason::panic;
        for (int boot = 1; boot <= 3; boot++) {
            CrashLoop loop;
            loop.begin(m.machine);
            CHECK(loop.safe_mode() == (boot == 3));
            CHECK(loop.boots() == boot);
            m.executor.run_for(60'000);
            m.executor.forget();
        }
        m.system.reason = ResetReason::software;
        CrashLoop again;
        again.begin(m.machine);
        CHECK(again.safe_mode());  // a restart on purpose keeps it
        m.executor.run_for(CrashLoop::stable_ms);
        CrashLoop after;
        after.begin(m.machine);
        CHECK_FALSE(after.safe_mode());
        CHECK(after.crashes() == 0);
    }

    TEST_CASE("a restart for another reason is no crash, and keeps the count") {
        for (int reason = 0; reason <= static_cast<int>(ResetReason::other); reason++) {
            FakeMachine m;
            m.system.reason = ResetReason::watchdog;
            for (int i = 0; i < 2; i++)
                CrashLoop().begin(m.machine);
            m.system.reason = static_cast<ResetReason>(reason);
            const bool crash = m.system.reason == ResetReason::panic || m.system.reason == ResetReason::watchdog ||
                               m.system.reason == ResetReason::other;
            for (int i = 1; i <= 10; i++) {
                CrashLoop loop;
                loop.begin(m.machine);
                CHECK_MESSAGE(loop.crashes() == (crash ? 2 + i : 2), to_string(m.system.reason));
                CHECK(loop.safe_mode() == crash);
            }
        }
    }
}

TEST_SUITE("url") {
    TEST_CASE("parse") {
        const Url u = parse_url("https://Fleet.example.org:8443/fw/a?b#c").value();
        CHECK(u.https);
        CHECK(u.host == "Fleet.example.org");
        CHECK(u.port == 8443);
        CHECK(u.path == "/fw/a?b#c");
        CHECK(parse_url("http://h").value().port == 80);
        CHECK(parse_url("https://h/").value().port == 443);
        for (const char *bad : {"", "ftp://h/", "HTTP://h/", "http://", "http:///x", "http://h:0/", "http://h:65536/",
                                "http://h:x/", "http://h:/", "http://u@h/", "http://h b/", "http://[::1]/",
                                "http://h\n/", "http://h\\x", "http://h?x", "http://a:1@b/", "http://h:1234567/"}) {
            CHECK_MESSAGE(!parse_url(bad).ok(), bad);
        }
        CHECK_FALSE(parse_url("http://" + std::string(254, 'a')).ok());
        CHECK(parse_url("http://" + std::string(253, 'a')).ok());
        for (const char c : {' ', '\n', '\x1f', '\x7f', '\\'})
            CHECK_FALSE(parse_url(std::string("http://h/a") + c + "b").ok());
        CHECK(parse_url("http://h/!~").ok());
        CHECK(parse_url("http://h:65535/").value().port == 65535);
        CHECK(parse_url("http://h:10900/").value().port == 10900);
    }

    TEST_CASE("policy") {
        CHECK(check_url("https://a.example/x", {false, "b.example,A.example"}).ok());
        CHECK(check_url("https://c.a.example/x", {false, "*.a.example"}).ok());
        CHECK(check_url("http://any/x", {true, "*"}).ok());
        CHECK(check_url("http://a.example/x", {false, "a.example"}).code == Code::refused);
        CHECK(check_url("https://a.example.evil/x", {false, "a.example"}).code == Code::refused);
        CHECK(check_url("https://a.example/x", {false, "*.a.example"}).code == Code::refused);
        CHECK(check_url("https://xa.example/x", {false, "a.example"}).code == Code::refused);
        CHECK(check_url("https://evilexample.org/x", {false, "*.example.org"}).code == Code::refused);
        CHECK(check_url("https://example.org.evil/x", {false, "*.example.org"}).code == Code::refused);
        CHECK(check_url("https://.example.org/x", {false, "*.example.org"}).code == Code::refused);
        CHECK(check_url("https://a.example/x", {false, ""}).code == Code::refused);
        CHECK(check_url("nonsense", {true, "*"}).code == Code::invalid);
    }
}

TEST_SUITE("version") {
    TEST_CASE("as stock devices compare") {
        const JsonDocument doc = load_vectors("ota_check.json");
        for (JsonView c = doc.root().member("version_compare").first(); c.exists(); c = c.next()) {
            CAPTURE(text_of(c.member("offered")));
            CHECK(newer_version(c.member("offered").text(), c.member("current").text()) == c.member("newer").is_true());
        }
    }

    TEST_CASE("what would crash a stock device is no version here") {
        for (const char *bad : {"", "v2.4.3", "latest", "2..4", "2.4.", "20260808120000", "1.2.3.4.5.6.7", "."}) {
            CHECK_FALSE(is_version(bad));
            CHECK_FALSE(newer_version(bad, "0"));
            CHECK_FALSE(newer_version("9", bad));
        }
        CHECK(is_version("1.2.3.4.5.6"));
        CHECK(is_version("999999999"));
    }
}

TEST_SUITE("documents") {
    TEST_CASE("telemetry") {
        FakeMachine m;
        m.network.name = "Bob\"s \xff net";
        m.clock.us = 90'500'000;
        m.clock.set_unix_ms(1'786'147'200'000, 480);
        char buffer[1024];
        JsonWriter w(buffer, sizeof buffer);
        w.begin_object();
        write_telemetry(w, m.machine, {12, 3, true, 4, 5, 6, 7});
        w.end_object();
        CHECK(w.view() ==
              "{\"uptime_s\":90,\"at\":1786147200000,\"version\":\"1.0.0\",\"reset_reason\":\"power_on\",\"boots\":12,"
              "\"crashes\":3,\"reconnects\":6,\"safe_mode\":true,\"config_version\":7,\"heap\":{\"free\":150000,"
              "\"min\":120000,"
              "\"largest\":90000},\"queue\":{\"waiting\":4,\"dropped\":5},\"network\":{\"ip\":\"192.0.2.27\",\"ssid\":"
              "\"Bob\\\"s "
              "\xEF\xBF\xBD net\",\"rssi_dbm\":-52,\"channel\":6},\"slot\":{\"label\":\"ota_0\",\"state\":\"valid\"},"
              "\"temperature_dc\":415}");
    }

    TEST_CASE("job reports") {
        const auto text = [](const JobReport &r, std::int64_t at) {
            char buffer[512];
            JsonWriter w(buffer, sizeof buffer);
            w.begin_object();
            write_job(w, r, at);
            return std::string(w.end_object().view());
        };
        CHECK(text({"j\"1", "upgrade", JobState::accepted, 0, {}}, 0) ==
              "{\"job\":\"j\\\"1\",\"kind\":\"upgrade\",\"state\":\"accepted\"}");
        CHECK(text({"j", "upgrade", JobState::progress, 45, {}}, 5) ==
              "{\"job\":\"j\",\"kind\":\"upgrade\",\"state\":\"progress\",\"percent\":45,\"at\":5}");
        CHECK(text({"j", "upgrade", JobState::done, 0, {}}, 0) ==
              "{\"job\":\"j\",\"kind\":\"upgrade\",\"state\":\"done\"}");
        CHECK(text({"j", "upgrade", JobState::failed, 0, {Code::rolled_back, "w"}}, 0) ==
              "{\"job\":\"j\",\"kind\":\"upgrade\",\"state\":\"failed\",\"code\":\"rolled_back\",\"reason\":\"w\"}");
    }

    TEST_CASE("every code and state has a name") {
        for (int i = 0; i <= static_cast<int>(Code::rolled_back); i++)
            CHECK(*to_string(static_cast<Code>(i)));
        CHECK(std::string(to_string(Code::wrong_target)) == "wrong_target");
        for (int i = 0; i <= static_cast<int>(ResetReason::other); i++)
            CHECK(*to_string(static_cast<ResetReason>(i)));
        for (int i = 0; i <= static_cast<int>(SlotState::undefined); i++)
            CHECK(*to_string(static_cast<SlotState>(i)));
    }
}
