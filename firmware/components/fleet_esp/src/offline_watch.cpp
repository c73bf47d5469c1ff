// SPDX-License-Identifier: MIT
#include "fleet_esp/offline_watch.hpp"

#include "esp_log.h"

#include <cinttypes>
#include <utility>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "offline";
constexpr std::string_view count_key = "offline_boots";

}  // namespace

void OfflineWatch::start(std::function<bool()> online) {
    if (limit_us_ <= 0) return;
    online_ = std::move(online);
    last_online_us_ = machine_.clock->mono_us();
    machine_.executor->post_after(pace_ms, [this] { look(); });
}

void OfflineWatch::look() {
    const std::int64_t now = machine_.clock->mono_us();
    if (online_()) last_online_us_ = now;
    if (now - last_online_us_ >= limit_us_) return restart();
    machine_.executor->post_after(pace_ms, [this] { look(); });
}

void OfflineWatch::restart() {
    const Result<std::int64_t> before = machine_.store->get_int(count_key);
    const std::int64_t count = (before.ok() ? before.value() : 0) + 1;
    ESP_LOGE(TAG, "no broker for %" PRId64 " h: restarting, for the %" PRId64 ". time", limit_us_ / 3600000000LL, count);
    if (machine_.store->set_int(count_key, count).ok()) (void)machine_.store->commit();
    machine_.system->restart();
}

}  // namespace fleet::esp
