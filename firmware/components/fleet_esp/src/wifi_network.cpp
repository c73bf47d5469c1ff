// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/wifi_network.hpp"

#include "fleet_esp/status_of.hpp"

#include "esp_check.h"

#include <cstring>
#include <utility>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "wifi";

esp_err_t start_radio() {
    const wifi_init_config_t init = WIFI_INIT_CONFIG_DEFAULT();
    ESP_RETURN_ON_ERROR(esp_wifi_init(&init), TAG, "radio");
    ESP_RETURN_ON_ERROR(esp_wifi_set_storage(WIFI_STORAGE_FLASH), TAG, "storage");
    ESP_RETURN_ON_ERROR(esp_wifi_set_mode(WIFI_MODE_STA), TAG, "mode");
    return ESP_OK;
}

// From association to address. A router that gives no address is no reason to wait for ever.
constexpr std::uint32_t attempt_ms = 60000;
// The driver says within milliseconds that it has ended an attempt or a connection, and
// nothing if there was none.
constexpr std::uint32_t leave_ms = 1000;
// A weak signal makes a handshake time out, too.
constexpr int timeouts_of_wrong_password = 3;
constexpr std::size_t longest_passphrase = 63;
constexpr std::size_t key_digits = 64;

bool is_password(std::string_view text) {
    if (text.size() <= longest_passphrase) return true;
    return text.size() == key_digits && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// By default the station takes the first access point of the name that it finds.
void prefer_strongest(wifi_config_t *config) {
    config->sta.scan_method = WIFI_ALL_CHANNEL_SCAN;
    config->sta.sort_method = WIFI_CONNECT_AP_BY_SIGNAL;
}

}  // namespace

bool make_station_config(std::string_view ssid, std::string_view password, wifi_config_t *config) {
    *config = {};
    if (ssid.empty() || ssid.size() > sizeof config->sta.ssid || !is_password(password)) return false;
    std::memcpy(config->sta.ssid, ssid.data(), ssid.size());
    std::memcpy(config->sta.password, password.data(), password.size());
    // A rogue access point of the same name without encryption is not taken.
    prefer_strongest(config);
    config->sta.threshold.authmode = password.empty() ? WIFI_AUTH_OPEN : WIFI_AUTH_WPA2_PSK;
    return true;
}

Status WifiNetwork::start(const char *host_name) {
    esp_err_t err = esp_netif_init();
    if (err != ESP_OK) return status_of(err, "TCP/IP did not start");
    netif_ = esp_netif_create_default_wifi_sta();
    esp_netif_set_hostname(netif_, host_name);  // without it the router shows "espressif"
    err = start_radio();
    if (err == ESP_OK) {
        err = esp_event_handler_instance_register(WIFI_EVENT, ESP_EVENT_ANY_ID, on_event, this, nullptr);
    }
    if (err == ESP_OK) {
        err = esp_event_handler_instance_register(IP_EVENT, ESP_EVENT_ANY_ID, on_event, this, nullptr);
    }
    if (err == ESP_OK) err = esp_wifi_start();
    return status_of(err, "Wi-Fi did not start");
}

bool WifiNetwork::knows_network() const {
    wifi_config_t config = {};
    return esp_wifi_get_config(WIFI_IF_STA, &config) == ESP_OK && config.sta.ssid[0] != 0;
}

void WifiNetwork::connect() {
    driven_ = true;
    if (connected_) return;
    wifi_config_t config = {};  // of the provisioning manager, perhaps
    if (esp_wifi_get_config(WIFI_IF_STA, &config) == ESP_OK && config.sta.scan_method != WIFI_ALL_CHANNEL_SCAN) {
        prefer_strongest(&config);
        esp_wifi_set_config(WIFI_IF_STA, &config);
    }
    try_now();
}

void WifiNetwork::hand_over() {
    driven_ = false;
    esp_wifi_get_config(WIFI_IF_STA, &before_);
}

// try_now begins an attempt, unless one is under way: the driver takes one at a time, and
// another one would end the first. It ends in an event, when its time is up, or is planned
// again.
void WifiNetwork::try_now() {
    if (trying_ || leaving_) return;
    const esp_err_t err = esp_wifi_connect();
    if (err != ESP_OK) {
        ESP_LOGW(TAG, "no attempt to connect: %s", esp_err_to_name(err));
        return retry();
    }
    trying_ = true;
    executor_.post_after(attempt_ms, [this, turn = ++turn_] {
        if (trying_ && turn == turn_) give_up();
    });
}

void WifiNetwork::give_up() {
    trying_ = false;
    if (!driven_) return;
    ESP_LOGW(TAG, "no address in time");
    esp_wifi_disconnect();
    retry();
}

// start_over ends what the driver does, for us or for somebody else, and connects with the
// credentials of now when it has: the event of what was before is not that of the attempt
// after it.
void WifiNetwork::start_over() {
    driven_ = true;
    trying_ = false;
    leaving_ = true;
    executor_.post_after(leave_ms, [this, turn = ++turn_] {
        if (!leaving_ || turn != turn_) return;
        leaving_ = false;
        if (driven_) connect();
    });
}

Status WifiNetwork::join(std::string_view ssid, std::string_view password) {
    wifi_config_t config;
    if (!make_station_config(ssid, password, &config)) return {Code::invalid, "no name or password of a Wi-Fi"};
    esp_wifi_get_config(WIFI_IF_STA, &before_);
    esp_wifi_disconnect();
    const esp_err_t err = esp_wifi_set_config(WIFI_IF_STA, &config);
    if (err == ESP_OK) start_over();
    return status_of(err, "the Wi-Fi credentials were not stored");
}

Status WifiNetwork::restore() {
    esp_wifi_disconnect();
    const esp_err_t err = esp_wifi_set_config(WIFI_IF_STA, &before_);
    if (before_.sta.ssid[0] != 0) start_over();
    return status_of(err, "the Wi-Fi credentials of before were not stored");
}

Status WifiNetwork::forget() {
    driven_ = false;
    return status_of(esp_wifi_restore(), "the Wi-Fi credentials were not erased");
}

void WifiNetwork::on_event(void *self, esp_event_base_t base, std::int32_t id, void *data) {
    auto *network = static_cast<WifiNetwork *>(self);
    if (base == IP_EVENT) {
        if (id == IP_EVENT_STA_GOT_IP) network->executor_.post([network] { network->gained(); });
        if (id == IP_EVENT_STA_LOST_IP) network->executor_.post([network] { network->lost_address(); });
        return;
    }
    if (id != WIFI_EVENT_STA_DISCONNECTED) return;
    const int reason = static_cast<const wifi_event_sta_disconnected_t *>(data)->reason;
    network->executor_.post([network, reason] { network->lost(reason); });
}

void WifiNetwork::gained() {
    backoff_.reset();
    timeouts_ = 0;
    trying_ = leaving_ = false;
    connected_ = true;
    ESP_LOGI(TAG, "connected as %s", ip().c_str());
    if (on_change) on_change(true);
}

void WifiNetwork::went_down() {
    if (!std::exchange(connected_, false)) return;
    if (on_change) on_change(false);
}

void WifiNetwork::lost(int reason) {
    trying_ = false;
    ESP_LOGW(TAG, "not connected: reason %d", reason);
    went_down();
    if (std::exchange(leaving_, false)) {
        if (driven_) connect();
        return;
    }
    if (is_wrong_password(reason)) backoff_.refused();
    if (driven_) retry();
}

// lost_address: the access point is there, and no address any more. ESP-IDF says so late
// after a lost connection, too.
void WifiNetwork::lost_address() {
    if (!connected_) return;
    ESP_LOGW(TAG, "the address is gone");
    went_down();
    if (!driven_) return;
    esp_wifi_disconnect();
    retry();
}

bool WifiNetwork::is_wrong_password(int reason) {
    const bool timeout = reason == WIFI_REASON_4WAY_HANDSHAKE_TIMEOUT || reason == WIFI_REASON_HANDSHAKE_TIMEOUT;
    timeouts_ = timeout ? timeouts_ + 1 : 0;
    return reason == WIFI_REASON_AUTH_FAIL || timeouts_ >= timeouts_of_wrong_password;
}

void WifiNetwork::retry() {
    if (retry_planned_) return;
    retry_planned_ = true;
    executor_.post_after(backoff_.next(), [this] {
        retry_planned_ = false;
        if (driven_ && !connected_) try_now();
    });
}

int WifiNetwork::rssi() const {
    wifi_ap_record_t ap = {};
    return esp_wifi_sta_get_ap_info(&ap) == ESP_OK ? ap.rssi : 0;
}

int WifiNetwork::channel() const {
    wifi_ap_record_t ap = {};
    return esp_wifi_sta_get_ap_info(&ap) == ESP_OK ? ap.primary : 0;
}

std::string WifiNetwork::ip() const {
    esp_netif_ip_info_t info = {};
    if (!connected_ || esp_netif_get_ip_info(netif_, &info) != ESP_OK) return {};
    char text[16] = {};
    return esp_ip4addr_ntoa(&info.ip, text, sizeof text);
}

std::string WifiNetwork::ssid() const {
    wifi_ap_record_t ap = {};
    if (esp_wifi_sta_get_ap_info(&ap) != ESP_OK) return {};
    const char *name = reinterpret_cast<const char *>(ap.ssid);
    return {name, strnlen(name, sizeof ap.ssid)};
}

}  // namespace fleet::esp
