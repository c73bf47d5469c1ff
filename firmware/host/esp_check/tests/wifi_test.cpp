// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/esp_system.hpp"
#include "fleet_esp/provisioning.hpp"
#include "fleet_esp/wifi_scan.hpp"

#include <cstring>
#include <random>

namespace wifi = fake::wifi;
namespace prov = fake::provisioning;

namespace {

struct Radio : Bench {
    Radio() {
        std::strcpy(reinterpret_cast<char *>(wifi::stored.sta.ssid), "home");
        REQUIRE(network.start("fleet-112233").ok());
        network.on_change = [this](bool up) { changes.push_back(up); };
    }
    fleet::esp::EspSystem system;
    fleet::esp::WifiNetwork network{executor, system};
    std::vector<bool> changes;
};

struct Joining : Radio {
    Joining() {
        provisioning.on_invite = [this](const fleet::esp::Invitation &i) { invitation = i; };
        REQUIRE(provisioning.start("FLEET", {}).ok());
    }
    fleet::esp::Provisioning provisioning{executor, network, system};
    fleet::esp::Invitation invitation;
};

std::string text_of(const std::uint8_t *field) {
    return reinterpret_cast<const char *>(field);
}

}  // namespace

TEST_SUITE_BEGIN("wifi");

TEST_CASE("a connection is told, with where it is") {
    Radio r;
    CHECK(r.network.knows_network());
    r.network.connect();
    CHECK(wifi::connects == 1);
    CHECK(r.network.ip().empty());
    wifi::got_ip();
    CHECK_FALSE(r.network.connected());
    r.run(1);
    CHECK(r.network.connected());
    CHECK(r.changes == std::vector<bool>{true});
    CHECK(r.network.ip() == "192.168.4.27");
    CHECK(r.network.ssid() == "lab");
    CHECK(r.network.rssi() == -52);
    CHECK(r.network.channel() == 6);
}

TEST_CASE("a lost connection is tried again, later and later, and told once") {
    Radio r;
    r.network.connect();
    wifi::got_ip();
    r.run(1);
    for (int i = 0; i < 3; ++i) {
        wifi::lost(WIFI_REASON_NO_AP_FOUND);
        wifi::lost(WIFI_REASON_NO_AP_FOUND);  // one try for both
        r.run(60000);
        CHECK(wifi::connects == 2 + i);
    }
    CHECK(r.changes == std::vector<bool>{true, false});
}

TEST_CASE("a wrong password is not tried in haste") {
    Radio r;
    r.network.connect();
    wifi::lost(WIFI_REASON_AUTH_FAIL);
    r.run(50000);
    CHECK(wifi::connects == 1);
    r.run(60000);
    CHECK(wifi::connects == 2);
}

TEST_CASE("a handshake that times out is a wrong password at the third time in a row") {
    for (const int reason : {WIFI_REASON_4WAY_HANDSHAKE_TIMEOUT, WIFI_REASON_HANDSHAKE_TIMEOUT}) {
        Radio r;
        r.network.connect();
        for (int i = 0; i < 2; ++i) {
            wifi::lost(reason);
            r.run(20'000);
            CHECK(wifi::connects == 2 + i);
        }
        wifi::lost(reason);
        r.run(59'000);
        CHECK(wifi::connects == 3);
        r.run(62'000);
        CHECK(wifi::connects == 4);
        wifi::lost(WIFI_REASON_NO_AP_FOUND);  // counts from the start again
        r.run(61'000);
        const int before = wifi::connects;
        wifi::lost(reason);
        r.run(61'000);
        CHECK(wifi::connects == before + 1);
    }
}

TEST_CASE("an attempt that the driver refuses is planned again") {
    Radio r;
    wifi::connect_result = ESP_ERR_INVALID_STATE;
    r.network.connect();
    CHECK(wifi::connects == 1);
    r.run(10'000);
    CHECK(wifi::connects > 2);
    wifi::connect_result = ESP_OK;
    const int before = wifi::connects;
    r.run(61'000);
    CHECK(wifi::connects == before + 1);  // from now on an event says how it ended
}

TEST_CASE("of several access points of the name the strongest is taken") {
    Radio r;  // with credentials that somebody else has stored
    r.network.connect();
    CHECK(wifi::stored.sta.scan_method == WIFI_ALL_CHANNEL_SCAN);
    CHECK(wifi::stored.sta.sort_method == WIFI_CONNECT_AP_BY_SIGNAL);
    CHECK(text_of(wifi::stored.sta.ssid) == "home");
    REQUIRE(r.network.join("office", "password1").ok());
    CHECK(wifi::stored.sta.scan_method == WIFI_ALL_CHANNEL_SCAN);
}

TEST_CASE("whoever drives the station is left alone") {
    Radio r;
    r.network.connect();
    wifi::lost(WIFI_REASON_NO_AP_FOUND);
    r.run(1);
    r.network.hand_over();
    r.run(120000);
    CHECK(wifi::connects == 1);
}

TEST_CASE("an attempt that ends in nothing is given up after a minute") {
    Radio r;
    r.network.connect();
    r.run(59'000);
    CHECK(wifi::connects == 1);
    r.run(10'000);
    CHECK(wifi::connects == 2);
    CHECK(wifi::disconnects == 1);
    wifi::got_ip();
    r.run(600'000);
    CHECK(wifi::connects == 2);
    CHECK(wifi::disconnects == 1);
}

TEST_CASE("an address that is gone is asked for again") {
    Radio r;
    r.network.connect();
    wifi::got_ip();
    r.run(1);
    wifi::lost_ip();
    r.run(1);
    CHECK_FALSE(r.network.connected());
    CHECK(r.changes == std::vector<bool>{true, false});
    r.run(5000);
    CHECK(wifi::connects == 2);
    wifi::got_ip();
    r.run(1);
    CHECK(r.changes == std::vector<bool>{true, false, true});
    wifi::lost(WIFI_REASON_NO_AP_FOUND);
    wifi::lost_ip();  // comes behind a lost connection, too
    r.run(1);
    CHECK(r.changes == std::vector<bool>{true, false, true, false});
    CHECK(wifi::disconnects == 1);
}

TEST_CASE("other credentials while an attempt is under way, or planned") {
    for (const bool planned : {false, true}) {
        Radio r;
        r.network.connect();
        if (planned) wifi::lost(WIFI_REASON_NO_AP_FOUND);
        r.run(1);
        REQUIRE(r.network.join("office", "password1").ok());
        r.run(2000);
        CHECK(wifi::connects == 2);
        r.run(20'000);
        CHECK(wifi::connects == 2);  // the end of the first, and its plan, disturb it no more
        CHECK(wifi::collisions == 0);
        wifi::got_ip();
        r.run(1);
        CHECK(r.changes == std::vector<bool>{true});
    }
}

// Whatever happens in whatever order, the station is never asked to connect while it
// connects; and in the end it tries.
TEST_CASE("attempts do not collide") {
    for (unsigned seed = 1; seed <= 300; ++seed) {
        CAPTURE(seed);
        Radio r;
        std::minstd_rand random(seed);
        for (int step = 0; step < 60; ++step) {
            switch (random() % 9) {
                case 0: r.network.connect(); break;
                case 1: (void)r.network.join("office", "password1"); break;
                case 2: (void)r.network.restore(); break;
                case 3:
                    if (wifi::connecting) wifi::got_ip();
                    break;
                case 4:
                case 5:
                    if (wifi::connecting || wifi::associated) wifi::lost(WIFI_REASON_NO_AP_FOUND);
                    break;
                case 6:
                    if (wifi::associated) wifi::lost_ip();
                    break;
                default: r.run(static_cast<std::uint32_t>(random() % 3000)); break;
            }
        }
        REQUIRE(wifi::collisions == 0);
        REQUIRE(r.network.join("office", "password1").ok());
        r.run(2000);
        CHECK(wifi::connecting);
        wifi::got_ip();
        r.run(1);
        CHECK(r.network.connected());
    }
}

TEST_CASE("other credentials, and back") {
    Radio r;
    REQUIRE(r.network.join("office", "password1").ok());
    r.run(1000);
    CHECK(text_of(wifi::stored.sta.ssid) == "office");
    CHECK(text_of(wifi::stored.sta.password) == "password1");
    CHECK(wifi::stored.sta.threshold.authmode == WIFI_AUTH_WPA2_PSK);
    REQUIRE(r.network.restore().ok());
    r.run(1000);
    CHECK(text_of(wifi::stored.sta.ssid) == "home");
    CHECK(wifi::connects == 2);
    REQUIRE(r.network.forget().ok());
    CHECK_FALSE(r.network.knows_network());
}

TEST_CASE("credentials have to fit") {
    wifi_config_t config;
    CHECK(fleet::esp::make_station_config(std::string(32, 's'), std::string(63, 'p'), &config));
    CHECK(config.sta.password[63] == 0);
    CHECK(fleet::esp::make_station_config("open", "", &config));
    CHECK(config.sta.threshold.authmode == WIFI_AUTH_OPEN);
    CHECK_FALSE(fleet::esp::make_station_config("", "password", &config));
    CHECK_FALSE(fleet::esp::make_station_config(std::string(33, 's'), "password", &config));
    CHECK_FALSE(fleet::esp::make_station_config("s", std::string(64, 'p'), &config));
    const std::string key = "0123456789abcdefABCDEF0123456789abcdef0123456789abcdef0123456789";
    REQUIRE(key.size() == 64);
    REQUIRE(fleet::esp::make_station_config("s", key, &config));
    CHECK(std::memcmp(config.sta.password, key.data(), 64) == 0);
    CHECK_FALSE(fleet::esp::make_station_config("s", key + "0", &config));
}

TEST_CASE("a scan gives what it finds, or nothing") {
    fake::reset();
    wifi_ap_record_t record = {};
    std::strcpy(reinterpret_cast<char *>(record.ssid), "cafe");
    record.rssi = -70;
    wifi::found = {record};
    const auto networks = fleet::esp::scan_networks();
    REQUIRE(networks.size() == 1);
    CHECK(networks[0].ssid == "cafe");
    CHECK(networks[0].rssi == -70);
    CHECK_FALSE(networks[0].locked);
    wifi::scan_result = ESP_ERR_INVALID_STATE;
    CHECK(fleet::esp::scan_networks().empty());
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("provisioning");

TEST_CASE("an invitation names the device and a new code") {
    Joining j;
    CHECK(prov::started);
    CHECK(prov::service == "FLEET-112233");
    CHECK(j.invitation.service == prov::service);
    CHECK(j.invitation.code.size() == 8);
    CHECK(prov::code == j.invitation.code);
    CHECK(prov::salt.size() == 16);
    CHECK(prov::verifier == std::string(384, 'v'));
    CHECK(j.invitation.qr == R"({"ver":"v1","name":"FLEET-112233","username":"fleet","pop":")" + j.invitation.code +
                                 R"(","transport":"softap","network":"wifi"})");
    CHECK(wifi::connects == 0);
}

TEST_CASE("the access point has an interface to give addresses on, once and for all") {
    Joining j;
    CHECK(wifi::access_points == 1);
    prov::raise(NETWORK_PROV_END);
    j.run(1);
    REQUIRE(j.provisioning.start("FLEET", {}).ok());
    CHECK(wifi::access_points == 1);
}

TEST_CASE("bad credentials are forgotten, good ones end it") {
    Joining j;
    prov::raise(NETWORK_PROV_WIFI_CRED_FAIL);
    j.run(1);
    CHECK(prov::resets == 1);
    CHECK(j.provisioning.running());
    prov::raise(NETWORK_PROV_WIFI_CRED_SUCCESS);
    wifi::got_ip();
    prov::raise(NETWORK_PROV_END);
    CHECK(prov::initialized);  // not from its own callback
    j.run(1);
    CHECK_FALSE(prov::initialized);
    CHECK_FALSE(j.provisioning.running());
    wifi::lost(WIFI_REASON_NO_AP_FOUND);
    j.run(60000);
    CHECK(wifi::connects == 1);  // from now on the network is ours
}

TEST_CASE("credentials by the serial line go through the manager while it runs") {
    Joining j;
    REQUIRE(j.provisioning.use("office", "password1").ok());
    CHECK(text_of(prov::configured.sta.ssid) == "office");
    CHECK(name_of(j.provisioning.use("", "")) == "invalid");
    prov::raise(NETWORK_PROV_END);
    j.run(1);
    REQUIRE(j.provisioning.use("cafe", "").ok());
    CHECK(text_of(wifi::stored.sta.ssid) == "cafe");
}

TEST_CASE("no code, no provisioning") {
    Radio r;
    prov::srp_result = ESP_ERR_NO_MEM;
    fleet::esp::Provisioning provisioning(r.executor, r.network, r.system);
    CHECK(name_of(provisioning.start("FLEET", {})) == "no_memory");
    CHECK_FALSE(provisioning.running());
    CHECK_FALSE(prov::initialized);
}
