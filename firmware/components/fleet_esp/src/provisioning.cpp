// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/provisioning.hpp"

#include "fleet_esp/status_of.hpp"
#include "fleet_esp/wifi_scan.hpp"

#include "esp_log.h"
#include "esp_srp.h"
#include "sdkconfig.h"

#if CONFIG_FLEET_PROV_BLE
#include "network_provisioning/scheme_ble.h"
#else
#include "network_provisioning/scheme_softap.h"
#endif

#include <algorithm>
#include <array>
#include <cstdlib>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "provisioning";
constexpr const char *user = "fleet";
constexpr int salt_size = 16;

#if CONFIG_FLEET_PROV_BLE
constexpr const char *transport = "ble";
#else
constexpr const char *transport = "softap";
#endif

// Without 0, O, 1, I, L: the code is read off a screen and typed.
std::string make_code(const System &system) {
    constexpr std::string_view letters = "23456789ABCDEFGHJKMNPQRSTUVWXYZ";
    std::array<std::uint8_t, 8> raw = {};
    system.random({raw.data(), raw.size()});
    std::string code;
    for (const std::uint8_t r : raw)
        code.push_back(letters[r % letters.size()]);
    return code;
}

// The last three bytes of the MAC distinguish the devices on one desk.
std::string make_name(const char *prefix, const std::string &mac) {
    std::string name = std::string(prefix) + "-";
    for (std::size_t i = 9; i < mac.size(); ++i) {
        if (mac[i] != ':') name.push_back(mac[i]);
    }
    return name;
}

Invitation make_invitation(const char *prefix, const System &system) {
    Invitation invitation;
    invitation.service = make_name(prefix, system.mac());
    invitation.user = user;
    invitation.code = make_code(system);
    invitation.qr = R"({"ver":"v1","name":")" + invitation.service + R"(","username":")" + invitation.user +
                    R"(","pop":")" + invitation.code + R"(","transport":")" + transport + R"(","network":"wifi"})";
    return invitation;
}

#if CONFIG_FLEET_PORTAL
std::string address_of(esp_netif_t *access_point) {
    esp_netif_ip_info_t info = {};
    char text[16] = {};
    if (esp_netif_get_ip_info(access_point, &info) != ESP_OK) return {};
    return esp_ip4addr_ntoa(&info.ip, text, sizeof text);
}
#endif

// move_out copies what the SRP library has allocated, and frees it.
std::string move_out(char *bytes, int size) {
    std::string text;
    if (bytes != nullptr && size > 0) text.assign(bytes, static_cast<std::size_t>(size));
    std::free(bytes);
    return text;
}

}  // namespace

Status Provisioning::start(const char *name_prefix, const SetupPage &page) {
    if (running_) return {};
    network_.hand_over();
    Status status = start_manager();
    if (!status.ok()) return status;
    running_ = true;
    const Invitation invitation = make_invitation(name_prefix, system_);
    start_page(page, invitation.code);  // the manager adds its handlers to the page's server
    status = start_service(invitation);
    if (!status.ok()) {
        end();
        return status;
    }
    ESP_LOGW(TAG, "waiting for Wi-Fi: join %s with user %s and code %s", invitation.service.c_str(), user,
             invitation.code.c_str());
    if (on_invite) on_invite(invitation);
    return {};
}

Status Provisioning::start_manager() {
    network_prov_mgr_config_t config = {};
#if CONFIG_FLEET_PROV_BLE
    config.scheme = network_prov_scheme_ble;
    config.scheme_event_handler.event_cb = network_prov_scheme_ble_event_cb_free_btdm;
#else
    // The scheme starts the access point's radio only: addresses are ours to give.
    if (access_point_ == nullptr) access_point_ = esp_netif_create_default_wifi_ap();
    config.scheme = network_prov_scheme_softap;
#endif
    config.app_event_handler.event_cb = on_event;
    config.app_event_handler.user_data = this;
    return status_of(network_prov_mgr_init(config), "the provisioning manager did not start");
}

Status Provisioning::start_service(const Invitation &invitation) {
    char *salt = nullptr, *verifier = nullptr;
    int verifier_size = 0;
    const std::string &code = invitation.code;
    esp_err_t err =
        esp_srp_gen_salt_verifier(user, static_cast<int>(invitation.user.size()), code.c_str(),
                                  static_cast<int>(code.size()), &salt, salt_size, &verifier, &verifier_size);
    salt_ = move_out(salt, err == ESP_OK ? salt_size : 0);
    verifier_ = move_out(verifier, err == ESP_OK ? verifier_size : 0);
    if (err != ESP_OK) return status_of(err, "the provisioning code was not prepared");
    params_.salt = salt_.data();
    params_.salt_len = static_cast<std::uint16_t>(salt_.size());
    params_.verifier = verifier_.data();
    params_.verifier_len = static_cast<std::uint16_t>(verifier_.size());
    err = network_prov_mgr_start_provisioning(NETWORK_PROV_SECURITY_2, &params_, invitation.service.c_str(), nullptr);
    return status_of(err, "provisioning did not start");
}

#if !CONFIG_FLEET_PORTAL

void Provisioning::start_page(const SetupPage &, const std::string &) {}
void Provisioning::stop_page() {}

#else

void Provisioning::start_page(const SetupPage &page, const std::string &code) {
    fleet_ = page.fleet;
    new_fleet_.clear();
    const std::string address = address_of(access_point_);
    Status status = page_.start(address, page.asks_code ? code : "", fleet_);
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    network_prov_scheme_softap_set_httpd_handle(page_.handle());  // without one the manager starts its own
    if (!status.ok()) return;
    status = name_server_.start(access_point_);
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    list_networks();
}

void Provisioning::stop_page() {
    name_server_.stop();
    page_.stop();
    network_prov_scheme_softap_set_httpd_handle(nullptr);
}

#endif

// A scan blocks for seconds.
void Provisioning::list_networks() {
    executor_.work([this] {
        std::vector<std::string> names;
        for (const FoundNetwork &found : scan_networks()) {
            const bool listed = std::find(names.begin(), names.end(), found.ssid) != names.end();
            if (!found.ssid.empty() && !listed) names.push_back(found.ssid);
        }
        executor_.post([this, names] { page_.set_networks(names); });
    });
}

void Provisioning::accept(const PortalInput &input) {
    if (!running_) return;
    const Status status = use(input.ssid, input.password);
    if (!status.ok()) {
        ESP_LOGW(TAG, "%s", status.why);
        page_.set_notice("The device is trying another Wi-Fi: wait a minute, then try again.");
        return;
    }
    page_.set_notice("The device is trying to join " + input.ssid + ".");
    new_fleet_ = input.fleet == fleet_ ? "" : input.fleet;
}

Status Provisioning::use(std::string_view ssid, std::string_view password) {
    if (!running_) return network_.join(ssid, password);
    wifi_config_t config;
    if (!make_station_config(ssid, password, &config)) return {Code::invalid, "no name or password of a Wi-Fi"};
    return status_of(network_prov_mgr_configure_wifi_sta(&config), "the Wi-Fi credentials were not taken");
}

void Provisioning::on_event(void *self, network_prov_cb_event_t event, void *) {
    auto *provisioning = static_cast<Provisioning *>(self);
    // The manager does not allow itself to be stopped from its own callback.
    provisioning->executor_.post([provisioning, event] { provisioning->handle(event); });
}

void Provisioning::handle(network_prov_cb_event_t event) {
    if (event == NETWORK_PROV_WIFI_CRED_FAIL) {
        ESP_LOGW(TAG, "these Wi-Fi credentials do not work; waiting for others");
        page_.set_notice("The device could not join that Wi-Fi: it is not in reach, or the password is wrong.");
        new_fleet_.clear();
        network_prov_mgr_reset_wifi_sm_state_on_failure();
    }
    if (event == NETWORK_PROV_WIFI_CRED_SUCCESS && !new_fleet_.empty() && on_fleet) on_fleet(new_fleet_);
    if (event == NETWORK_PROV_END) end();
}

void Provisioning::close() {
    if (!running_) return;
    running_ = false;
    network_prov_mgr_deinit();
    stop_page();
    const Status status = network_.restore();
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
}

void Provisioning::end() {
    if (!running_) return;
    running_ = false;
    network_prov_mgr_deinit();
    stop_page();
    network_.connect();  // it is connected already: from now on it is kept so
}

}  // namespace fleet::esp
