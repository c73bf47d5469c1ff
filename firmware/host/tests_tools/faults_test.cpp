// SPDX-License-Identifier: Apache-2.0
// Faults on request, and the ways to a server: each seen from the server.
#include "fleet/hex.hpp"
#include "process.hpp"
#include "tls_front.hpp"
#include "virtual_unit.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <chrono>

using namespace fleet;
using namespace fleet::test;

namespace {

// telemetry is a number of the latest heartbeat; -1 if there was none.
std::int64_t telemetry(StubFleet &fleet, const std::string &member) {
    const std::string said = fleet.said();
    const std::size_t at = said.rfind("\"" + member + "\":");
    return at == std::string::npos ? -1 : std::atoll(said.c_str() + at + member.size() + 3);
}

bool heard(StubFleet &fleet, const std::string &part) {
    return fleet.said().find(part) != std::string::npos;
}

StubFleet &without_updates(StubFleet &fleet) {
    fleet.offers_left = 0;
    return fleet;
}

}  // namespace

TEST_SUITE("vdevice faults") {
    TEST_CASE("a connection that drops again and again is made again, and counted") {
        StubFleet fleet("");
        TempDir dir;
        Process device(command(without_updates(fleet), dir / "u", {"--fault", "drop-mqtt=1"}), dir / "log");
        CHECK(Process::eventually([&] { return fleet.connections >= 3; }));
        CHECK(Process::eventually([&] { return telemetry(fleet, "reconnects") >= 2; }));
    }

    TEST_CASE("a clock that jumps changes what is told, and nothing else") {
        constexpr std::int64_t server_ms = 1786147200000, jump_s = 86400;
        StubFleet fleet("");
        TempDir dir;
        Process device(command(without_updates(fleet), dir / "u",
                               {"--fault", "clock-jump=" + std::to_string(jump_s) + ":5000", "--fault", "drop-mqtt=1"}),
                       dir / "log");
        REQUIRE(Process::eventually([&] { return telemetry(fleet, "at") > 0; }));
        CHECK(telemetry(fleet, "at") < server_ms + jump_s * 1000);
        CHECK(Process::eventually([&] { return telemetry(fleet, "at") >= server_ms + jump_s * 1000; }));
        CHECK(telemetry(fleet, "uptime_s") < 60);
        CHECK(fleet.polls == 1);
    }

    TEST_CASE("a slow link is as slow as it is told, and the update arrives") {
        StubFleet fleet(image_with("", 100000));
        TempDir dir;
        const auto begun = std::chrono::steady_clock::now();
        Process device(command(fleet, dir / "u", {"--fault", "rate=50000"}), dir / "log");
        CHECK(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        CHECK(std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(2000));
        CHECK(fleet.downloads == 1);
    }

    TEST_CASE("an image that leaks runs out of memory and crashes, and says so") {
        StubFleet fleet(image_with(R"({"slow_heap_leak":5000})"));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        CHECK(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        CHECK(Process::eventually([&] { return heard(fleet, R"("reset_reason":"panic")"); }));
        CHECK(heard(fleet, R"("core_dump":true)"));
        CHECK(device.running());
    }

    TEST_CASE("it connects to the broker it is told on the command line") {
        StubFleet named("unused"), other("unused");
        TempDir dir;
        const std::string broker = "127.0.0.1:" + std::to_string(other.mqtt_port());
        Process device(command(without_updates(named), dir / "u", {"--broker", broker}), dir / "log");
        CHECK(Process::eventually([&] { return heard(other, "notifications/telemetry"); }));
        CHECK(named.connections == 0);
    }

    TEST_CASE("a unit with a serial number proves its key before it is told the broker") {
        const std::string serial(32, 'S'), bytes(32, 'k');
        std::string key_file = serial + "\n" + encode_hex(Bytes{bytes}) + "\n";
        bool genuine = true;
        SUBCASE("the right key") {}
        SUBCASE("another key") {
            genuine = false;
            key_file[40] = key_file[40] == '6' ? '7' : '6';
        }
        StubFleet fleet("", bytes);
        TempDir dir;
        std::filesystem::create_directory(dir / "u");
        put_file(dir / "u/identity.key", key_file);
        Process device(command(without_updates(fleet), dir / "u"), dir / "log");
        const auto joined = [&] { return fleet.connections > 0; };
        CHECK((genuine ? Process::eventually(joined) : Process::wait_for(joined, 1500)) == genuine);
    }

    TEST_CASE("over TLS it joins whom it trusts, and nobody else") {
        std::string name = "127.0.0.1", trusted;
        bool joins = false, of_system = false;
        SUBCASE("an authority that the system trusts") {
            joins = of_system = true;
        }
        SUBCASE("one that the system does not trust") {
            of_system = true;
            trusted = "another";
        }
        SUBCASE("our own authority, an address") {
            joins = true;
        }
        SUBCASE("our own authority, a name") {
            name = "localhost";
            joins = true;
        }
        SUBCASE("the right authority, the wrong name") {
            name = "elsewhere.example";
        }
        SUBCASE("another authority") {
            trusted = "another";
        }
        CAPTURE(name);
        StubFleet fleet("");
        const TlsFront web(fleet.http_port(), "127.0.0.1"), broker(fleet.mqtt_port(), name);
        const TlsFront stranger(1, name);
        fleet.stated_port = broker.port();
        TempDir dir;
        put_file(dir / "ca.pem", web.certificate() + (trusted.empty() ? broker : stranger).certificate());
        const std::string host = name == "localhost" ? name : "127.0.0.1";
        std::vector<std::string> c = command(without_updates(fleet), dir / "u");
        if (of_system) {
            c.insert(c.begin(), {"/usr/bin/env", "SSL_CERT_FILE=" + (dir / "ca.pem")});
        } else {
            c.insert(c.end(), {"--ca", dir / "ca.pem"});
        }
        *(std::find(c.begin(), c.end(), "--ota-url") + 1) = "https://127.0.0.1:" + std::to_string(web.port()) + "/ota/";
        const std::string port = std::to_string(broker.port());
        c.insert(c.end(), {"--tls-port", port, "--broker", host + ":" + port});
        Process device(c, dir / "log");
        REQUIRE(Process::eventually([&] { return fleet.polls > 0; }));
        const auto joined = [&] { return fleet.connections > 0; };
        CHECK((joins ? Process::eventually(joined) : Process::wait_for(joined, 1500)) == joins);
    }

    TEST_CASE("a poll over TLS to a server that is not trusted tells nothing") {
        StubFleet fleet("");
        const TlsFront web(fleet.http_port(), "127.0.0.1"), stranger(1, "127.0.0.1");
        TempDir dir;
        put_file(dir / "ca.pem", stranger.certificate());
        std::vector<std::string> c = command(without_updates(fleet), dir / "u", {"--ca", dir / "ca.pem"});
        c[2] = "https://127.0.0.1:" + std::to_string(web.port()) + "/ota/";
        Process device(c, dir / "log");
        CHECK_FALSE(Process::wait_for([&] { return fleet.polls > 0; }, 1500));
        CHECK(device.running());
    }

    TEST_CASE("an image that carries a program runs it, and goes back to the one before") {
        const Result<std::string> program = host::read_file(next_program, 15u << 20);
        REQUIRE(program.ok());
        bool sound = true;
        std::string payload = program.value();
        SUBCASE("a whole program") {}
        SUBCASE("one that does not start") {
            sound = false;
            payload.resize(64);
        }
        StubFleet fleet(image_with(payload, 0));  // nothing follows the program
        fleet.offers_left = 1;
        TempDir dir;
        Process device(command(fleet, dir / "u", {"--run-elf"}), dir / "log");
        const auto settled = [&] {
            return sound ? settled_on_new(dir / "u") : went_back(dir / "u", SlotState::aborted);
        };
        CHECK(Process::eventually(settled));
        CHECK(device.running());
        const Result<std::string> log = host::read_file(dir / "log", 1 << 20);
        REQUIRE(log.ok());
        CHECK((log.value().find("1.1.0 on esp32s3-lcd") != std::string::npos) == sound);
        CHECK((log.value().find("next program") != std::string::npos) == sound);
        CHECK(log.value().find("stock program") != std::string::npos);
    }
}
