// SPDX-License-Identifier: Apache-2.0
// A whole unit on a fake machine.
#include "fleet/unit.hpp"
#include "machine.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

const char boot_url[] = "https://fleet.example.org/ota";
const char claimed_answer[] =
    "{\"mqtt\":{\"endpoint\":\"broker:1883\",\"client_id\":\"c\",\"publish_topic\":\"up\"},"
    "\"server_time\":{\"timestamp\":1786147200000,\"timezone_offset\":480}}";

const char ping_message[] = "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}}";

struct UnitFixture {
    UnitFixture() { m.http.answers[boot_url] = {{200, claimed_answer, false}}; }
    ~UnitFixture() { CHECK_FALSE(m.store.dirty); }
    void start() {
        unit = std::make_unique<Unit>(m.machine, options());
        unit->start();
        m.executor.settle();
    }
    UnitOptions options() const {
        UnitOptions o;
        o.poll_url = boot_url;
        o.ota.proof_ms = proof_ms;
        o.hello = hello;
        return o;
    }
    bool sent(std::string_view part) const {
        for (const std::string &s : m.transport.sent) {
            if (s.find(part) != std::string::npos) return true;
        }
        return false;
    }
    Refusal configure(const char *json) {
        const Result<JsonDocument> d = JsonDocument::parse(json);
        return unit->configure(d.value().root());
    }
    // run_to_start ends with the next attempt to connect, which has its own limit.
    void run_to_start(int seconds) {
        const int before = m.transport.starts;
        for (int s = 0; s < seconds && m.transport.starts == before; s++)
            m.executor.run_for(1000);
    }
    std::uint32_t proof_ms = 30'000;
    bool hello = false;
    FakeMachine m;
    std::unique_ptr<Unit> unit;
};

}  // namespace

TEST_SUITE("unit") {
    TEST_CASE("polls, connects, tells of itself, answers") {
        UnitFixture f;
        f.start();
        CHECK(f.m.transport.last.host == "broker");
        CHECK(f.m.clock.zone_minutes == 480);
        CHECK_FALSE(f.unit->online());
        f.m.transport.connect();
        CHECK(f.unit->online());
        CHECK(f.m.transport.last_topic == "up");
        CHECK(f.sent("notifications/telemetry"));
        f.m.transport.say("{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}}");
        CHECK(f.sent("\"serverInfo\":{\"name\":\"fleet-devkit-s3\",\"version\":\"1.0.0\"}"));
        f.m.transport.say("{\"type\":\"alert\",\"status\":\"Notice\",\"message\":\"hi\",\"emotion\":\"\"}");
        CHECK(f.m.display.shown == "Notice|hi");
        f.m.transport.sent.clear();
        f.m.executor.run_for(10 * 60'000);
        CHECK(f.m.transport.sent.size() >= 9);
        CHECK(f.m.transport.sent.size() <= 11);
        CHECK(f.m.transport.plain);  // the core repeats what got lost
    }

    TEST_CASE("says hello with features.mcp at each connection, where that is wanted") {
        UnitFixture f;
        SUBCASE("for other servers") {
            f.hello = true;
        }
        SUBCASE("not for fleetd") {}
        f.start();
        for (int i = 0; i < 2; i++) {
            f.m.transport.sent.clear();
            f.m.transport.connect();
            CHECK(f.sent("\"type\":\"hello\"") == f.hello);
            CHECK(f.sent("\"features\":{\"mcp\":true}") == f.hello);
            f.m.transport.drop();
            f.run_to_start(10);
        }
    }

    TEST_CASE("a message that the link does not take is refused, with a code") {
        UnitFixture f;
        f.start();
        f.m.transport.connect();
        f.m.transport.sent.clear();
        f.m.transport.on_too_long();
        CHECK(f.sent("\"id\":null,\"error\":{\"code\":-32700"));
    }

    TEST_CASE("shows its code until it is claimed, without a broker") {
        UnitFixture f;
        f.m.http.answers[boot_url] = {{200,
                                       "{\"activation\":{\"code\":\"482913\",\"message\":\"m\",\"challenge\":\"c\"},"
                                       "\"mqtt\":{\"endpoint\":\"h\",\"publish_topic\":\"t\"}}",
                                       false},
                                      {200, claimed_answer, false}};
        f.m.http.answers[std::string(boot_url) + "/activate"] = {{202, "", false}, {200, "", false}};
        f.start();
        CHECK(f.m.display.shown == "482913|m");
        CHECK(f.m.transport.starts == 0);
        f.m.executor.run_for(4'000);
        CHECK(f.m.transport.starts == 1);
    }

    TEST_CASE("a server that is down leaves the settings of last time") {
        UnitFixture f;
        f.start();
        f.m.executor.forget();
        UnitFixture g;
        g.m.store.values = f.m.store.values;
        g.m.http.answers[boot_url] = {{0, "", true}};
        g.start();
        CHECK(g.m.transport.starts == 0);
        g.m.executor.run_for(60'000);
        CHECK(g.m.transport.starts == 1);
        CHECK(g.m.transport.last.host == "broker");
    }

    TEST_CASE("the saved broker does not come back in place of the one that the server named") {
        UnitFixture f;
        f.m.store.values["s:broker"] = "{\"host\":\"old\",\"port\":1883}";
        f.start();
        CHECK(f.m.transport.last.host == "broker");
        f.m.http.answers[boot_url] = {{0, "", true}};
        for (int i = 0; i < 3; i++) {
            f.m.transport.drop(TransportState::refused);
            f.run_to_start(400);
        }
        f.m.executor.run_for(10 * 60'000);
        CHECK(f.m.transport.last.host == "broker");
    }

    TEST_CASE("reconnects with back-off, one plan at a time") {
        UnitFixture f;
        f.start();
        f.m.transport.connect();
        f.m.transport.drop();
        f.m.transport.drop();
        f.m.executor.run_for(2'000);
        CHECK(f.m.transport.starts == 2);
        for (int i = 0; i < 20; i++) {
            const int before = f.m.transport.starts;
            f.m.transport.drop();
            f.run_to_start(301);
            CHECK(f.m.transport.starts == before + 1);
        }
        f.m.transport.startable = false;
        f.m.transport.drop();
        f.m.executor.run_for(30 * 60'000);
        CHECK(f.m.transport.starts > 25);
        f.m.transport.on_state(TransportState::connecting, {});
        CHECK_FALSE(f.unit->online());
    }

    TEST_CASE("lost connections are counted") {
        UnitFixture f;
        f.start();
        for (int lost = 0; lost < 3; lost++) {
            f.m.transport.sent.clear();
            f.m.transport.connect();
            CHECK(f.sent("\"reconnects\":" + std::to_string(lost)));
            f.m.transport.drop();
            f.run_to_start(10);
        }
    }

    TEST_CASE("refused credentials are not hammered, and asked for anew") {
        UnitFixture f;
        f.start();
        const std::size_t polls = f.m.http.posted.size();
        for (int i = 0; i < 3; i++) {
            const int before = f.m.transport.starts;
            f.m.transport.drop(TransportState::refused);
            f.m.executor.run_for(59'000);
            CHECK(f.m.transport.starts == before);
            f.run_to_start(310);
            CHECK(f.m.transport.starts == before + 1);
        }
        CHECK(f.m.http.posted.size() == polls + 1);
    }

    TEST_CASE("each CONNECT is signed anew where the broker asks for it, and a refusal asks for the time") {
        UnitFixture f;
        SodiumCrypto crypto;
        f.m.machine.crypto = &crypto;
        std::string answer = claimed_answer;
        answer.replace(answer.find("\"mqtt\":{"), 8, "\"mqtt\":{\"sign_connect\":1,\"password\":\"p\",");
        f.m.http.answers[boot_url] = {{200, answer, false}};
        f.start();
        std::string sent = f.m.transport.last.password;
        CHECK(sent.rfind("p.1786147200", 0) == 0);
        const std::size_t polls = f.m.http.posted.size();
        for (std::size_t i = 1; i <= 2; i++) {
            f.m.transport.drop(TransportState::refused);
            f.run_to_start(400);
            CHECK(f.m.http.posted.size() == polls + i);
            CHECK(f.m.transport.last.password != sent);
            sent = f.m.transport.last.password;
        }
    }

    TEST_CASE("what happens offline is told later, in order, at a pace") {
        UnitFixture f;
        f.start();
        for (int i = 0; i < 3; i++)
            f.unit->report({"j" + std::to_string(i), "upgrade", JobState::accepted, 0, {}});
        CHECK(f.m.transport.sent.empty());
        f.m.transport.connect();
        f.m.executor.run_for(40);
        CHECK(f.m.transport.sent.size() == 1);
        f.m.executor.run_for(1'000);
        REQUIRE(f.m.transport.sent.size() == 4);
        CHECK(f.m.transport.sent[0].find("\"j0\"") != std::string::npos);
        CHECK(f.m.transport.sent[2].find("\"j2\"") != std::string::npos);
        CHECK(f.m.transport.sent[0].find("\"at\":1786147200") != std::string::npos);
    }

    TEST_CASE("a configuration that loses the broker takes itself back") {
        UnitFixture f;
        f.start();
        f.m.transport.connect();
        CHECK_FALSE(f.configure("{\"version\":1,\"values\":{\"heartbeat_s\":30}}").refused());
        CHECK(f.configure("{\"version\":1,\"values\":{}}").refused());
        f.m.executor.run_for(120'000);
        CHECK_FALSE(f.unit->config().on_trial());
        CHECK(f.unit->config().integer("heartbeat_s") == 30);
        CHECK_FALSE(f.configure("{\"version\":2,\"values\":{\"heartbeat_s\":300}}").refused());
        f.m.transport.drop();
        f.m.executor.run_for(120'000);
        CHECK(f.unit->config().integer("heartbeat_s") == 30);
        f.m.transport.connect();
        f.m.executor.run_for(1'000);
        CHECK(f.sent("\"config\":{\"version\":1,\"on_trial\":false,\"reverted\":2,\"values\":{\"heartbeat_s\":30"));
        CHECK_FALSE(f.configure("{\"version\":3,\"values\":{\"telemetry\":false}}").refused());
        f.m.transport.sent.clear();
        f.m.executor.run_for(100'000);
        CHECK_FALSE(f.sent("telemetry\",\"params"));
    }

    TEST_CASE("a configuration taken back by a restart is told at the next connection, once") {
        FakeStore kept;
        {
            UnitFixture f;
            f.start();
            f.m.transport.connect();
            REQUIRE_FALSE(f.configure("{\"version\":4,\"values\":{\"heartbeat_s\":30}}").refused());
            f.m.executor.forget();
            kept.values = f.m.store.values;
        }
        const std::string expected = "\"config\":{\"version\":0,\"on_trial\":false,\"reverted\":4,";
        const bool wanted[] = {false, true, false};  // a start without a broker in between
        for (int start = 0; start < 3; start++) {
            UnitFixture f;
            f.m.store.values = kept.values;
            f.start();
            if (start > 0) f.m.transport.connect();
            f.m.executor.run_for(1'000);
            CHECK(f.sent(expected) == wanted[start]);
            f.m.executor.forget();
            kept.values = f.m.store.values;
        }
    }

    TEST_CASE("a configuration taken back offline is told after the restart that follows, too") {
        UnitFixture f;
        f.start();
        f.m.transport.connect();
        REQUIRE_FALSE(f.configure("{\"version\":4,\"values\":{\"heartbeat_s\":30}}").refused());
        f.m.transport.drop();
        f.m.transport.startable = false;
        f.m.executor.run_for(120'000);
        CHECK_FALSE(f.unit->config().on_trial());
        f.m.executor.forget();
        UnitFixture g;
        g.m.store.values = f.m.store.values;
        g.start();
        g.m.transport.connect();
        g.m.executor.run_for(1'000);
        CHECK(g.sent("\"reverted\":4"));
    }

    TEST_CASE("an image offered by the poll is installed, a stale offer is not") {
        UnitFixture f;
        const std::string image = make_image("2.0.0");
        f.m.http.files["https://fleet.example.org/fw"] = image;
        const auto offer = [&](const char *version, const char *url, const char *more) {
            f.m.http.answers[boot_url] = {
                {200,
                 "{\"firmware\":{\"version\":\"" + std::string(version) + "\",\"url\":\"" + url + "\"" + more + "}}",
                 false}};
        };
        SUBCASE("newer") {
            offer("2.0.0", "https://fleet.example.org/fw", "");
            f.start();
            f.m.executor.run_for(5'000);
            CHECK(f.m.system.restarts == 1);
            CHECK(f.m.transport.stops == 1);
        }
        SUBCASE("older, by force") {
            offer("0.9", "https://fleet.example.org/fw", ",\"force\":1");
            f.start();
            f.m.executor.run_for(5'000);
            CHECK(f.m.system.restarts == 1);
        }
        SUBCASE("older") {
            offer("0.9", "https://fleet.example.org/fw", "");
            f.start();
            f.m.executor.run_for(5'000);
            CHECK(f.m.http.asked_from.empty());
        }
        SUBCASE("from elsewhere") {
            offer("2.0.0", "https://elsewhere.example/fw", "");
            f.start();
            f.m.executor.run_for(5'000);
            CHECK(f.m.http.asked_from.empty());
            f.m.http.answers[boot_url] = {{200, claimed_answer, false}};
        }
    }

    TEST_CASE("a new image is valid once a message came back, and it stayed online") {
        UnitFixture f;
        f.m.updater.slots[0].info.state = SlotState::pending_verify;
        f.start();
        f.m.transport.connect();
        CHECK(f.m.updater.running().state == SlotState::pending_verify);
        f.m.transport.say(ping_message);
        f.m.executor.run_for(29'000);
        CHECK(f.m.updater.running().state == SlotState::pending_verify);
        f.m.executor.run_for(2'000);
        CHECK(f.m.updater.running().state == SlotState::valid);
    }

    TEST_CASE("a new image that loses the broker begins its proof anew") {
        UnitFixture f;
        f.m.updater.slots[0].info.state = SlotState::pending_verify;
        f.start();
        f.m.transport.connect();
        f.m.transport.say(ping_message);
        f.m.executor.run_for(20'000);
        f.m.transport.drop();
        f.m.executor.run_for(20'000);  // past the end of what began before
        CHECK(f.m.updater.running().state == SlotState::pending_verify);
        f.m.transport.connect();
        f.m.transport.say(ping_message);
        f.m.executor.run_for(29'000);
        CHECK(f.m.updater.running().state == SlotState::pending_verify);
        f.m.executor.run_for(2'000);
        CHECK(f.m.updater.running().state == SlotState::valid);
    }

    TEST_CASE("a message proves the way only after one of our own on the same connection") {
        UnitFixture f;
        f.m.updater.slots[0].info.state = SlotState::pending_verify;
        f.proof_ms = 0;
        f.start();
        REQUIRE_FALSE(f.configure("{\"version\":1,\"values\":{\"telemetry\":false}}").refused());
        f.m.transport.connect();
        f.m.executor.run_for(1'000);  // what the configuration had to report
        f.m.transport.drop();
        f.m.executor.run_for(3'000);
        f.m.transport.connect();
        f.m.transport.say("{\"type\":\"goodbye\"}");
        CHECK(f.m.updater.running().state == SlotState::pending_verify);
        f.m.transport.say(ping_message);
        CHECK(f.m.updater.running().state == SlotState::pending_verify);  // that asked; it was answered
        f.m.transport.say(ping_message);
        CHECK(f.m.updater.running().state == SlotState::valid);
    }

    TEST_CASE("a last will is left with the broker, and each connection begins with a birth") {
        UnitFixture f;
        f.start();
        CHECK(f.m.transport.will_topic == "up");
        CHECK(
            f.m.transport.will ==
            "{\"session_id\":\"\",\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"method\":\"notifications/gone\","
            "\"params\":{}}}");
        CHECK(scan_json(f.m.transport.will, {}).ok());
        for (int i = 0; i < 2; i++) {
            f.m.transport.sent.clear();
            f.m.transport.connect();
            CHECK(f.sent("\"birth\":true"));
            f.m.transport.sent.clear();
            f.m.executor.run_for(70'000);
            CHECK(f.sent("notifications/telemetry"));
            CHECK_FALSE(f.sent("birth"));
            f.m.transport.drop();
            f.m.executor.run_for(10'000);
        }
    }

    TEST_CASE("hours offline leave a heartbeat for every five minutes, and no outcome is lost for them") {
        UnitFixture f;
        f.start();
        f.m.transport.startable = false;
        f.unit->report({"j-1", "upgrade", JobState::failed, 0, {Code::io, "flash"}});
        f.m.transport.connect();
        f.m.transport.drop();
        f.m.transport.sent.clear();
        f.unit->report({"j-2", "upgrade", JobState::failed, 0, {Code::io, "flash"}});
        f.m.executor.run_for(62 * 60'000);
        f.m.transport.connect();
        f.m.executor.run_for(5'000);
        int beats = 0;
        std::int64_t before = 0;
        for (const std::string &m : f.m.transport.sent) {
            const std::size_t at = m.find("\"at\":");
            if (m.find("telemetry") == std::string::npos || m.find("birth") != std::string::npos) continue;
            REQUIRE(at != std::string::npos);
            const std::int64_t when = std::strtoll(m.c_str() + at + 5, nullptr, 10);
            if (beats++ > 0) CHECK(when - before >= 300'000);
            before = when;
        }
        CHECK(beats >= 3);  // as many as the outbox holds
        CHECK(beats <= 13);
        CHECK(f.sent("\"j-2\""));
        CHECK(f.sent("\"birth\":true"));
    }

    TEST_CASE("a heartbeat without a clock is not kept") {
        UnitFixture f;
        f.m.http.answers[boot_url] = {
            {200, "{\"mqtt\":{\"endpoint\":\"broker:1883\",\"publish_topic\":\"up\"}}", false}};
        f.start();
        f.m.executor.run_for(20 * 60'000);
        f.m.transport.connect();
        CHECK(f.m.transport.sent.size() == 1);
    }

    TEST_CASE("an offer that names its job is reported by that name") {
        UnitFixture f;
        f.m.http.answers[boot_url] = {{200,
                                       "{\"mqtt\":{\"endpoint\":\"broker:1883\",\"publish_topic\":\"up\"},"
                                       "\"firmware\":{\"version\":\"2.0\",\"url\":\"https://fleet.example.org/fw\","
                                       "\"job\":\"d-7.2\"}}",
                                       false}};
        f.start();
        f.m.transport.connect();
        f.m.executor.run_for(5'000);
        CHECK(f.sent("\"job\":\"d-7.2\",\"kind\":\"upgrade\",\"state\":\"accepted\""));
        CHECK(f.sent("\"job\":\"d-7.2\",\"kind\":\"upgrade\",\"state\":\"failed\""));
    }

    TEST_CASE("reboot by message: goodbye first, once") {
        UnitFixture f;
        f.start();
        f.m.transport.connect();
        f.m.transport.say("{\"type\":\"system\",\"command\":\"reboot\"}");
        f.m.transport.say("{\"type\":\"system\",\"command\":\"reboot\"}");
        f.m.executor.run_for(600);
        CHECK(f.m.transport.stops == 1);
        f.m.transport.drop();
        f.m.executor.run_for(10'000);
        CHECK(f.m.system.restarts == 1);
        CHECK(f.m.transport.starts == 1);
    }

    TEST_CASE("a network that is back shortens the wait for the broker, but not after a refusal") {
        UnitFixture f;
        f.start();
        f.m.transport.startable = false;
        f.m.transport.drop();
        f.m.executor.run_for(3'600'000);
        f.m.system.fixed_random = 255;  // the longest of waits
        int starts = f.m.transport.starts;
        f.run_to_start(301);
        starts = f.m.transport.starts;
        f.m.executor.run_for(1000);
        f.unit->network_up();
        f.m.transport.startable = true;
        f.m.executor.run_for(5'100);
        CHECK(f.m.transport.starts == starts + 1);
        f.m.transport.connect();
        f.unit->network_up();
        f.m.executor.run_for(400'000);  // what was planned before comes no more
        CHECK(f.m.transport.starts == starts + 1);
        f.m.transport.drop(TransportState::refused);
        f.unit->network_up();
        f.m.executor.run_for(30'000);
        CHECK(f.m.transport.starts == starts + 1);
    }

    TEST_CASE("a network that is back shortens the wait for the poll") {
        UnitFixture f;
        const std::vector<FakeHttp::Answer> good = f.m.http.answers[boot_url];
        f.m.http.answers[boot_url] = {{0, "", true}};
        f.start();
        f.m.executor.run_for(3'600'000);
        f.m.system.fixed_random = 255;
        f.m.executor.run_for(302'000);
        const std::size_t polls = f.m.http.posted.size();
        f.m.http.answers[boot_url] = good;
        f.unit->network_up();
        f.m.executor.run_for(5'100);
        CHECK(f.m.http.posted.size() == polls + 1);
        CHECK(f.m.transport.starts == 1);
    }

    TEST_CASE("an attempt to connect that never ends is given up, and another one made") {
        UnitFixture f;
        f.start();
        CHECK(f.m.transport.starts == 1);
        f.m.executor.run_for(Unit::connect_ms - 1000);
        CHECK(f.m.transport.stops == 0);
        f.m.executor.run_for(2 * Unit::connect_ms + 10'000);
        CHECK(f.m.transport.stops >= 1);
        CHECK(f.m.transport.starts >= 2);
        f.m.transport.connect();
        const int starts = f.m.transport.starts;
        f.m.executor.run_for(10 * Unit::connect_ms);
        CHECK(f.m.transport.starts == starts);
    }

    TEST_CASE("a restart waits for the goodbye, and not for ever") {
        UnitFixture f;
        f.start();
        f.m.transport.connect();
        f.unit->restart();
        f.m.executor.run_for(400);
        CHECK(f.m.transport.stops == 0);
        CHECK(f.m.system.restarts == 0);
        f.m.executor.run_for(200);
        CHECK(f.m.transport.stops == 1);
        CHECK(f.m.system.restarts == 1);

        UnitFixture stalled;
        stalled.start();
        stalled.m.transport.connect();
        stalled.m.transport.stopping = false;
        stalled.unit->restart();
        stalled.m.executor.run_for(Unit::restart_ms - 100);
        CHECK(stalled.m.system.restarts == 0);
        stalled.m.executor.run_for(200);
        CHECK(stalled.m.system.restarts == 1);
    }

    TEST_CASE("hours without a broker end in a restart") {
        UnitFixture f;
        f.start();
        f.m.transport.startable = false;
        f.m.transport.drop();
        f.m.executor.run_for(5LL * 3600 * 1000);
        CHECK(f.m.system.restarts == 0);
        f.m.executor.run_for(2LL * 3600 * 1000);
        CHECK(f.m.system.restarts >= 1);
    }

    TEST_CASE("URLs") {
        UnitFixture f;
        f.start();
        CHECK(f.unit->check_url("https://fleet.example.org/x").ok());
        CHECK_FALSE(f.unit->check_url("http://fleet.example.org/x").ok());
        CHECK_FALSE(f.unit->check_url("https://192.0.2.1/x").ok());
        CHECK_FALSE(
            f.configure("{\"version\":1,\"values\":{\"url_hosts\":\"cdn.example\",\"allow_http\":true}}").refused());
        CHECK(f.unit->check_url("http://cdn.example/x").ok());
        CHECK(f.unit->crashes().boots() == 1);
    }
}
