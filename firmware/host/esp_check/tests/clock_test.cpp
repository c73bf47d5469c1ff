// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/esp_clock.hpp"

#include "esp_netif_sntp.h"

#include <cstdlib>

namespace fake::sntp {
extern esp_sntp_time_cb_t callback;
extern std::string server;
}  // namespace fake::sntp

TEST_SUITE_BEGIN("clock");

TEST_CASE("there is no date before somebody sets it") {
    fake::reset();
    fleet::esp::EspClock clock;
    CHECK_FALSE(clock.synced());
    CHECK(clock.unix_ms() == 0);
    CHECK(clock.mono_us() == 1000000);
    clock.set_unix_ms(0, 0);  // an answer without a time
    CHECK_FALSE(clock.synced());
    REQUIRE(clock.start_sntp("time.example.org").ok());
    CHECK(fake::sntp::server == "time.example.org");
    CHECK(clock.unix_ms() == 0);
    struct timeval now = {};
    fake::sntp::callback(&now);
    CHECK(clock.synced());
}

TEST_CASE("the poll's time is UTC, its zone is for reading only") {
    fake::reset();
    fleet::esp::EspClock clock;
    clock.set_unix_ms(1786147200123, 480);
    CHECK(clock.unix_ms() == 1786147200123);
    CHECK(std::string(std::getenv("TZ")) == "<L>-08:00");
    fake::rtos::now_us += 2000000;
    CHECK(clock.unix_ms() == 1786147202123);
    clock.set_unix_ms(1786147200123, -210);
    CHECK(std::string(std::getenv("TZ")) == "<L>+03:30");
    clock.set_unix_ms(1786147200123, 100000);  // no zone of this earth
    CHECK(std::string(std::getenv("TZ")) == "<L>+03:30");
}

TEST_CASE("no server, no SNTP") {
    fake::reset();
    fake::sntp::server = "none";
    fleet::esp::EspClock clock;
    CHECK(clock.start_sntp("").ok());
    CHECK(fake::sntp::server == "none");
}
