// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/esp_clock.hpp"
#include "fleet_esp/nvs_store.hpp"

#include "esp_netif_sntp.h"

#include <sys/time.h>

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

namespace {

constexpr std::int64_t today = 1786147200, day = 24 * 60 * 60;

// Remembering is a clock with a store; begin is a start of the device, whose clock is at zero.
struct Remembering {
    Remembering() {
        fake::reset();
        REQUIRE(store.open("fleet").ok());
    }
    void begin() {
        set_clock(0);
        executor = std::make_unique<fleet::esp::TaskExecutor>();
        REQUIRE(executor->start().ok());
        clock = std::make_unique<fleet::esp::EspClock>();
        clock->remember(store, *executor);
    }
    std::int64_t kept() {
        fake::rtos::run(*executor, 11 * 60 * 1000);
        const auto date = store.get_int(fleet::esp::EspClock::key);
        return date.ok() ? date.value() : 0;
    }
    static std::int64_t clock_s() {
        struct timeval now = {};
        gettimeofday(&now, nullptr);
        return now.tv_sec;
    }
    static void set_clock(std::int64_t s) {
        struct timeval now = {};
        now.tv_sec = s;
        settimeofday(&now, nullptr);
    }
    fleet::esp::NvsStore store;
    std::unique_ptr<fleet::esp::EspClock> clock;
    std::unique_ptr<fleet::esp::TaskExecutor> executor;
};

}  // namespace

TEST_CASE("a date that a certificate has confirmed is the earliest of the next start") {
    Remembering r;
    r.begin();
    CHECK_FALSE(fleet::esp::earliest_date_is_known());
    r.clock->set_unix_ms(today * 1000, 0);
    CHECK(r.kept() == 0);
    fleet::esp::confirm_date();
    const std::int64_t date = r.kept();
    CHECK(date >= today);
    CHECK(date < today + 3600);

    r.begin();
    CHECK(fleet::esp::earliest_date_is_known());
    CHECK(r.clock_s() == date);
    CHECK_FALSE(r.clock->synced());
    CHECK(r.clock->unix_ms() == 0);
    fleet::esp::confirm_date();  // by a certificate that was checked by the date of before
    CHECK(r.kept() == date);

    r.clock->set_unix_ms((date + day / 2) * 1000, 0);
    fleet::esp::confirm_date();
    const int commits = fake::nvs::commits;
    CHECK(r.kept() == date);  // once a day at most
    CHECK(fake::nvs::commits == commits);
    r.clock->set_unix_ms((date + 2 * day) * 1000, 0);
    fleet::esp::confirm_date();
    CHECK(r.kept() >= date + 2 * day);
}

TEST_CASE("what SNTP says confirms nothing, and a certificate no poll that it contradicts") {
    Remembering r;
    r.begin();
    REQUIRE(r.clock->start_sntp("time.example.org").ok());
    r.set_clock(today + 3650 * day);
    struct timeval now = {};
    fake::sntp::callback(&now);
    fleet::esp::confirm_date();
    CHECK(r.kept() == 0);
    r.clock->set_unix_ms((today + 3650 * day) * 1000, 0);  // a server whose clock is wrong
    r.set_clock(today);                                    // SNTP is right: the certificate is good today
    fleet::esp::confirm_date();
    CHECK(r.kept() == 0);
    r.clock->set_unix_ms(today * 1000, 0);
    r.set_clock(today - 3600);
    fleet::esp::confirm_date();
    CHECK(r.kept() <= today - 3600);  // the earlier one is certain
    CHECK(r.kept() > today - 7200);
}

TEST_CASE("no server, no SNTP") {
    fake::reset();
    fake::sntp::server = "none";
    fleet::esp::EspClock clock;
    CHECK(clock.start_sntp("").ok());
    CHECK(fake::sntp::server == "none");
}
