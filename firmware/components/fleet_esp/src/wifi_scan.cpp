// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/wifi_scan.hpp"

#include "esp_log.h"
#include "esp_wifi.h"

#include <cstring>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "wifi";
constexpr std::uint16_t most = 20;

FoundNetwork found(const wifi_ap_record_t &record) {
    const char *name = reinterpret_cast<const char *>(record.ssid);
    return {std::string(name, strnlen(name, sizeof record.ssid)), record.rssi, record.authmode != WIFI_AUTH_OPEN};
}

}  // namespace

std::vector<FoundNetwork> scan_networks() {
    const esp_err_t err = esp_wifi_scan_start(nullptr, true);
    if (err != ESP_OK) {
        ESP_LOGW(TAG, "no scan: %s", esp_err_to_name(err));
        return {};
    }
    std::uint16_t count = most;
    std::vector<wifi_ap_record_t> records(most);
    if (esp_wifi_scan_get_ap_records(&count, records.data()) != ESP_OK) return {};
    std::vector<FoundNetwork> networks;
    for (std::uint16_t i = 0; i < count && i < most; ++i)
        networks.push_back(found(records[i]));
    return networks;
}

}  // namespace fleet::esp
