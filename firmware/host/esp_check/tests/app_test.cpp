// SPDX-License-Identifier: Apache-2.0
// The whole program on the fakes: from power-on to a claimed device that works.
#include "support.hpp"

#include "app.hpp"
#include "fleet_esp/log_capture.hpp"
#include "fleet_esp/nvs_store.hpp"

#include <cstring>

namespace http = fake::http;
namespace mqtt = fake::mqtt;
namespace wifi = fake::wifi;

namespace {

constexpr const char *claimed =
    R"({"mqtt":{"endpoint":"fleet.example.org:1883","client_id":"unit-1","username":"u","password":"p",)"
    R"("publish_topic":"fleet/unit-1/up","keepalive":60},"server_time":{"timestamp":1786147200000,"timezone_offset":0}})";
constexpr const char *unclaimed =
    R"({"activation":{"code":"482913","message":"fleet.example.org","challenge":"f3b0c2","timeout_ms":30000}})";

struct Unit : Bench {
    Unit() {
        (void)fleet::esp::start_log_capture();
        REQUIRE(store.open("fleet").ok());
    }
    void power_on() {
        app = std::make_unique<fleet::esp::App>(executor, store);
        executor.post([this] { app->start(); });
        run(10);
    }
    void know_network() { std::strcpy(reinterpret_cast<char *>(wifi::stored.sta.ssid), "home"); }
    void get_network() {
        wifi::got_ip();
        run(3100);  // the first poll comes at a random time within three seconds
    }
    std::string sent() const {
        std::string all;
        for (const mqtt::Sent &s : mqtt::last().sent)
            all += s.payload + "\n";
        return all;
    }

    fleet::esp::NvsStore store;
    std::unique_ptr<fleet::esp::App> app;
};

}  // namespace

TEST_SUITE_BEGIN("app");

TEST_CASE("a claimed device polls, connects and answers") {
    Unit unit;
    unit.know_network();
    http::answers = {http::answer(claimed)};
    unit.power_on();
    CHECK(wifi::connects == 1);
    CHECK(http::requests.empty());
    unit.get_network();
    REQUIRE(http::requests.size() == 1);
    CHECK(http::requests[0].url == CONFIG_FLEET_BOOT_URL);
    CHECK(http::requests[0].headers.at("Device-Id") == "a0:85:e3:11:22:33");
    REQUIRE(mqtt::clients.size() == 1);
    CHECK(mqtt::last().client_id == "unit-1");
    mqtt::up(mqtt::last());
    unit.run(200);
    CHECK(unit.sent().find("notifications/telemetry") != std::string::npos);
    mqtt::message(
        mqtt::last(),
        R"({"type":"mcp","session_id":"s","payload":{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}})");
    unit.run(200);
    CHECK(unit.sent().find("self.get_device_status") != std::string::npos);
    CHECK(unit.sent().find("\"id\":7") != std::string::npos);
}

namespace {

const char *const reboot_call =
    R"({"type":"mcp","session_id":"s","scope":"operator","payload":{"jsonrpc":"2.0","id":9,"method":"tools/call",)"
    R"("params":{"name":"self.reboot","arguments":{}}}})";

}  // namespace

TEST_CASE("a restart is answered, then the broker hears goodbye, then it comes") {
    Unit unit;
    unit.know_network();
    http::answers = {http::answer(claimed)};
    unit.power_on();
    unit.get_network();
    mqtt::up(mqtt::last());
    unit.run(5000);
    mqtt::message(mqtt::last(), reboot_call);
    unit.run(3000);
    CHECK(unit.sent().find("\"id\":9,\"result\"") != std::string::npos);
    CHECK(mqtt::last().disconnected);
    CHECK(mqtt::last().closed_us > mqtt::last().sent.back().at_us);
    CHECK(fake::chip::restarts == 1);
    CHECK(fake::rtos::longest_turn_us <= 100'000);
}

TEST_CASE("a restart comes even if TCP takes no goodbye") {
    Unit unit;
    unit.know_network();
    http::answers = {http::answer(claimed)};
    unit.power_on();
    unit.get_network();
    mqtt::up(mqtt::last());
    unit.run(5000);
    mqtt::last().stalled = true;
    mqtt::message(mqtt::last(), reboot_call);
    unit.run(3000);
    CHECK(fake::chip::restarts == 1);
}

TEST_CASE("a new image becomes valid by a poll, a message and time online, not before") {
    Unit unit;
    unit.know_network();
    fake::ota::slots[0].state = ESP_OTA_IMG_PENDING_VERIFY;
    http::answers = {http::answer(claimed)};
    unit.power_on();
    unit.get_network();
    mqtt::up(mqtt::last());
    unit.run(1000);
    CHECK_FALSE(fake::ota::marked_valid);
    mqtt::message(mqtt::last(),
                  R"({"type":"mcp","session_id":"s","payload":{"jsonrpc":"2.0","id":1,"method":"ping"}})");
    unit.run((CONFIG_FLEET_PROOF_S - 2) * 1000);
    CHECK_FALSE(fake::ota::marked_valid);
    unit.run(4000);
    CHECK(fake::ota::marked_valid);
    CHECK_FALSE(fake::ota::marked_invalid);
}

TEST_CASE("a new image without a network is given up") {
    Unit unit;
    unit.know_network();
    fake::ota::slots[0].state = ESP_OTA_IMG_PENDING_VERIFY;
    unit.power_on();
    unit.run((CONFIG_FLEET_TRIAL_S + 120) * 1000);
    CHECK(fake::ota::marked_invalid);
    CHECK_FALSE(fake::ota::marked_valid);
    CHECK(fake::chip::restarts >= 1);
}

TEST_CASE("an unclaimed device prints its code") {
    Unit unit;
    unit.know_network();
    http::answers = {http::answer(unclaimed)};
    unit.power_on();
    unit.get_network();
    CHECK(fake::log::text.find("claim this device with code 482913") != std::string::npos);
    CHECK(mqtt::clients.empty());
}

TEST_CASE("a device without Wi-Fi invites, and comes up once it has one") {
    Unit unit;
    unit.power_on();
    CHECK(fake::provisioning::started);
    CHECK(wifi::connects == 0);
    CHECK(fake::log::text.find("FLEET-112233") != std::string::npos);
    unit.run(120000);
    CHECK(http::requests.empty());
    http::answers = {http::answer(claimed)};
    unit.get_network();
    CHECK(mqtt::clients.size() == 1);
}

TEST_CASE("the poll's url can be set in NVS") {
    Unit unit;
    unit.know_network();
    REQUIRE(unit.store.set("boot_url", "https://other.example.org/ota/").ok());
    http::answers = {http::answer(claimed)};
    unit.power_on();
    unit.get_network();
    CHECK(http::requests.at(0).url == "https://other.example.org/ota/");
}

TEST_CASE("three crashes in a row leave upgrades and little else") {
    Unit unit;
    unit.know_network();
    REQUIRE(unit.store.set_int("crashes", 2).ok());
    fake::chip::reset_reason = ESP_RST_PANIC;
    http::answers = {http::answer(claimed)};
    unit.power_on();
    unit.get_network();
    mqtt::up(mqtt::last());
    mqtt::message(
        mqtt::last(),
        R"({"type":"mcp","session_id":"s","payload":{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"withUserTools":true}}})");
    unit.run(200);
    CHECK(unit.sent().find("self.upgrade_firmware") != std::string::npos);
    CHECK(unit.sent().find("self.logs.stream") != std::string::npos);
    CHECK(unit.sent().find("self.config.set") == std::string::npos);
    CHECK(fake::log::text.find("safe mode") != std::string::npos);
}

TEST_CASE("a held button starts the device over") {
    Unit unit;
    unit.know_network();
    REQUIRE(unit.store.set("broker", "{}").ok());
    unit.power_on();
    const auto press = [&](bool down, std::uint32_t ms) {
        fake::chip::pins[0] = fake::chip::pins[9] = down ? 0 : 1;  // BOOT of the S3, and of the C3
        unit.run(ms);
    };
    press(true, 60'000);  // a serial terminal
    press(false, 6000);
    CHECK(fake::chip::restarts == 0);
    press(true, 6000);
    press(false, 1000);
    press(true, 300);
    press(false, 500);
    CHECK(wifi::stored.sta.ssid[0] == 0);
    CHECK(name_of(unit.store.get("broker")) == "not_found");
    CHECK(fake::chip::restarts == 1);
}

TEST_CASE("a known network that is gone opens provisioning, beside the retries") {
    Unit unit;
    unit.know_network();
    unit.power_on();
    unit.run(4 * 60'000);
    CHECK_FALSE(fake::provisioning::started);
    unit.run(61'000);
    CHECK(fake::provisioning::started);
    CHECK(wifi::stored.sta.ssid[0] == 0);
    const int before = wifi::connects;
    unit.run(5 * 60'000);
    CHECK_FALSE(fake::provisioning::started);
    CHECK(std::string(reinterpret_cast<char *>(wifi::stored.sta.ssid)) == "home");
    CHECK(wifi::connects > before);
    unit.run(2 * 60'000);
    CHECK(fake::provisioning::started);
    unit.run(5 * 60'000);
    wifi::got_ip();
    unit.run(60 * 60'000);
    CHECK_FALSE(fake::provisioning::started);
}

TEST_CASE("devices whose power comes back together do not poll together") {
    Unit unit;
    unit.know_network();
    fake::chip::next_random = 128;
    http::answers = {http::answer(claimed)};
    unit.power_on();
    wifi::got_ip();
    unit.run(1000);
    CHECK(http::requests.empty());
    unit.run(2000);
    CHECK(http::requests.size() == 1);
}

#if CONFIG_IDF_TARGET_ESP32C3
// The board that this build has: boards/esp32c3-relay.
namespace {

std::string call_tool(Unit &unit, int id, const std::string &name, const std::string &arguments) {
    mqtt::message(mqtt::last(), R"({"type":"mcp","session_id":"s","payload":{"jsonrpc":"2.0","id":)" +
                                    std::to_string(id) + R"(,"method":"tools/call","params":{"name":")" + name +
                                    R"(","arguments":)" + arguments + "}}}");
    unit.run(100);
    return mqtt::last().sent.back().payload;
}

void bring_online(Unit &unit) {
    unit.know_network();
    http::answers = {http::answer(claimed)};
    unit.power_on();
    unit.get_network();
    mqtt::up(mqtt::last());
    unit.run(200);
}

}  // namespace

TEST_CASE("a board's tools: a relay and a thermometer") {
    Unit unit;
    fake::i2c::registers[0] = std::string("\x17\x80", 2);  // 23.5 degrees
    bring_online(unit);
    CHECK(fake::chip::pins[4] == 0);
    CHECK(call_tool(unit, 1, "self.relay.set", R"({"on":true})").find("\"text\":\"true\"") != std::string::npos);
    CHECK(fake::chip::pins[4] == 1);
    call_tool(unit, 2, "self.relay.set", R"({"on":false})");
    CHECK(fake::chip::pins[4] == 0);
    CHECK(call_tool(unit, 3, "self.thermometer.read", "{}").find("23.5") != std::string::npos);
    fake::i2c::registers[0] = std::string("\xff\x80", 2);
    CHECK(call_tool(unit, 4, "self.thermometer.read", "{}").find("-0.5") != std::string::npos);
    fake::i2c::answers = false;
    CHECK(call_tool(unit, 5, "self.thermometer.read", "{}").find("does not answer") != std::string::npos);
}

TEST_CASE("a part that is not there adds no tool") {
    Unit unit;
    fake::i2c::answers = false;
    bring_online(unit);
    CHECK(call_tool(unit, 2, "self.thermometer.read", "{}").find("\"error\"") != std::string::npos);
    CHECK(call_tool(unit, 3, "self.relay.set", R"({"on":true})").find("\"text\":\"true\"") != std::string::npos);
}
#endif

TEST_CASE("a radio that does not start is no end") {
    Unit unit;
    unit.know_network();
    wifi::init_result = ESP_FAIL;
    unit.power_on();
    unit.run(61000);
    CHECK(fake::chip::restarts == 0);
}

TEST_CASE("the setup page moves the device to another fleet") {
    Unit unit;
    REQUIRE(unit.store.set("broker", "{}").ok());
    unit.power_on();
    fake::web::Client form;
    const std::string page = fake::web::send(form).body;
    CHECK(page.find(CONFIG_FLEET_BOOT_URL) != std::string::npos);
#if CONFIG_IDF_TARGET_ESP32S3
    const bool has_screen = true;
#else
    const bool has_screen = false;  // and so no code that somebody could read
#endif
    CHECK((page.find("name=\"code\"") != std::string::npos) == has_screen);
    form.method = HTTP_POST;
    form.body = "ssid=office&fleet=https%3A%2F%2Fother.example%2Fota%2F&code=" + fake::provisioning::code;
    CHECK(fake::web::send(form).status == 200);
    unit.run(100);
    CHECK(fake::chip::restarts == 0);
    fake::provisioning::raise(NETWORK_PROV_WIFI_CRED_SUCCESS);
    unit.run(100);
    CHECK(unit.store.get("boot_url").value() == "https://other.example/ota/");
    CHECK(name_of(unit.store.get("broker")) == "not_found");
    CHECK(fake::chip::restarts == 1);
}

TEST_CASE("a device in use asks for its code, even if only the log has it") {
    Unit unit;
    unit.know_network();
    unit.power_on();
    unit.run(5 * 60'000 + 1000);
    REQUIRE(fake::web::running);
    CHECK(fake::web::send({}).body.find("name=\"code\"") != std::string::npos);
}
