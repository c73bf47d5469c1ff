// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/esp_clock.hpp"

#include "fleet_esp/status_of.hpp"

#include "esp_log.h"
#include "esp_netif_sntp.h"
#include "esp_timer.h"

#include <sys/time.h>

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
    date_is_set = false;
}

bool date_is_known() {
    return date_is_set;
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
}

}  // namespace fleet::esp
