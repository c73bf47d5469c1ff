// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/esp_clock.hpp"

#include "fleet/stored.hpp"
#include "fleet_esp/status_of.hpp"

#include "esp_log.h"
#include "esp_netif_sntp.h"
#include "esp_timer.h"

#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "clock";

// SNTP's callback has no context argument, and there is one system clock.
std::atomic<bool> date_is_set{false};
std::atomic<bool> earliest_is_set{false};

// In Unix seconds; 0: not known. 32 bits: wider ones are not atomic on these chips.
std::atomic<std::uint32_t> start_by_poll{0};  // when the device started
std::atomic<std::uint32_t> confirmed{0};

constexpr std::uint32_t keep_ms = 10 * 60 * 1000;
constexpr std::int64_t day_s = 24 * 60 * 60;

std::uint32_t uptime_s() {
    return static_cast<std::uint32_t>(esp_timer_get_time() / 1000000);
}

void on_sntp(struct timeval *) {
    if (!date_is_set.exchange(true)) ESP_LOGI(TAG, "the date came by SNTP");
}

// POSIX counts zones westward, so the sign turns round.
void set_zone(std::int32_t minutes) {
    const std::int32_t size = minutes < 0 ? -minutes : minutes;
    char zone[24];
    std::snprintf(zone, sizeof zone, "<L>%c%02" PRId32 ":%02" PRId32, minutes < 0 ? '+' : '-', size / 60, size % 60);
    setenv("TZ", zone, 1);
    tzset();
}

}  // namespace

EspClock::EspClock() {
    date_is_set = earliest_is_set = false;
    start_by_poll = confirmed = 0;
}

bool date_is_known() {
    return date_is_set;
}

bool earliest_date_is_known() {
    return date_is_set || earliest_is_set;
}

void confirm_date() {
    if (start_by_poll == 0) return;
    struct timeval now = {};
    gettimeofday(&now, nullptr);
    const std::int64_t by_poll = std::int64_t{start_by_poll} + uptime_s();
    const std::int64_t by_clock = now.tv_sec;  // of SNTP, perhaps: what the certificate was checked by
    if (by_clock - by_poll > day_s || by_poll - by_clock > day_s) return;
    confirmed = static_cast<std::uint32_t>(std::min(by_poll, by_clock));
}

void EspClock::remember(KvStore &store, Executor &executor) {
    kept_ = stored_int(store, key, 0);
    if (kept_ > 0) {
        struct timeval then = {};
        then.tv_sec = static_cast<decltype(then.tv_sec)>(kept_);
        settimeofday(&then, nullptr);
        earliest_is_set = true;
    }
    executor.post_after(keep_ms, [this, &store, &executor] { keep(store, executor); });
}

void EspClock::keep(KvStore &store, Executor &executor) {
    executor.post_after(keep_ms, [this, &store, &executor] { keep(store, executor); });
    if (confirmed < kept_ + day_s) return;
    kept_ = confirmed;
    put_int(store, key, kept_);
}

Status EspClock::start_sntp(const char *server) {
    if (server == nullptr || server[0] == '\0') return {};
    esp_sntp_config_t config = {};
    config.start = true;
    config.sync_cb = on_sntp;
    config.num_of_servers = 1;
    config.servers[0] = server;
    return status_of(esp_netif_sntp_init(&config), "SNTP did not start");
}

std::int64_t EspClock::mono_us() const {
    return esp_timer_get_time();
}

std::int64_t EspClock::unix_ms() const {
    if (!date_is_set) return 0;
    struct timeval now = {};
    gettimeofday(&now, nullptr);
    return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_usec / 1000;
}

bool EspClock::synced() const {
    return date_is_set;
}

void EspClock::set_unix_ms(std::int64_t ms, std::int32_t zone_minutes) {
    constexpr std::int32_t day = 24 * 60;
    if (zone_minutes > -day && zone_minutes < day) set_zone(zone_minutes);
    if (ms <= 0) return;
    struct timeval now = {};
    now.tv_sec = static_cast<decltype(now.tv_sec)>(ms / 1000);
    now.tv_usec = static_cast<decltype(now.tv_usec)>(ms % 1000 * 1000);
    settimeofday(&now, nullptr);
    date_is_set = true;
    start_by_poll = static_cast<std::uint32_t>(ms / 1000) - uptime_s();
}

}  // namespace fleet::esp
