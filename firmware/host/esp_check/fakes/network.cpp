// SPDX-License-Identifier: Apache-2.0
// Events, TCP/IP, Wi-Fi, provisioning, SNTP, mDNS.
#include "fakes.hpp"

#include "esp_netif.h"
#include "esp_netif_sntp.h"
#include "esp_srp.h"
#include "mdns.h"
#include "network_provisioning/scheme_ble.h"
#include "network_provisioning/scheme_softap.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
extern const esp_event_base_t IP_EVENT = "IP_EVENT";
extern const esp_event_base_t WIFI_EVENT = "WIFI_EVENT";
extern const esp_event_base_t NETWORK_PROV_EVENT = "NETWORK_PROV_EVENT";
extern const network_prov_scheme_t network_prov_scheme_softap = {WIFI_MODE_APSTA};
extern const network_prov_scheme_t network_prov_scheme_ble = {WIFI_MODE_STA};
}

struct esp_netif_obj {};

namespace fake::events {

struct Handler {
    esp_event_base_t base;
    std::int32_t id;
    esp_event_handler_t handler;
    void *arg;
};
std::vector<Handler> handlers;

void post(esp_event_base_t base, std::int32_t id, void *data) {
    for (const Handler &h : handlers) {
        if (h.base == base && (h.id == ESP_EVENT_ANY_ID || h.id == id)) h.handler(h.arg, base, id, data);
    }
}

}  // namespace fake::events

namespace fake::wifi {

wifi_config_t stored = {};
int connects = 0, disconnects = 0, starts = 0, access_points = 0, collisions = 0;
std::vector<wifi_ap_record_t> found;
esp_err_t init_result = ESP_OK, scan_result = ESP_OK, connect_result = ESP_OK;
bool associated = false, connecting = false;

void got_ip() {
    associated = true;
    connecting = false;
    ip_event_got_ip_t event = {};
    events::post(IP_EVENT, IP_EVENT_STA_GOT_IP, &event);
}

void lost_ip() {
    ip_event_got_ip_t event = {};
    events::post(IP_EVENT, IP_EVENT_STA_LOST_IP, &event);
}

void lost(int reason) {
    associated = connecting = false;
    wifi_event_sta_disconnected_t event = {};
    event.reason = static_cast<std::uint8_t>(reason);
    events::post(WIFI_EVENT, WIFI_EVENT_STA_DISCONNECTED, &event);
}

}  // namespace fake::wifi

namespace fake::provisioning {

bool initialized = false, started = false;
std::string service, salt, verifier, code;
int resets = 0;
wifi_config_t configured = {};
esp_err_t srp_result = ESP_OK, configure_result = ESP_OK;
void *shared_server = nullptr;
bool shared_server_ran = false;
network_prov_event_handler_t handler = {};

void raise(network_prov_cb_event_t event) {
    handler.event_cb(handler.user_data, event, nullptr);
}

}  // namespace fake::provisioning

namespace fake::dhcp {
std::uint32_t name_server = 0;
int offer = 0, starts = 0;
}  // namespace fake::dhcp

namespace fake::sntp {
esp_sntp_time_cb_t callback = nullptr;
std::string server;
}  // namespace fake::sntp

using namespace fake;

extern "C" {

esp_err_t esp_event_loop_create_default(void) {
    return ESP_OK;
}
esp_err_t esp_event_handler_instance_register(esp_event_base_t base, int32_t id, esp_event_handler_t handler, void *arg,
                                              esp_event_handler_instance_t *) {
    events::handlers.push_back({base, id, handler, arg});
    return ESP_OK;
}

esp_err_t esp_netif_init(void) {
    return ESP_OK;
}
esp_netif_t *esp_netif_create_default_wifi_sta(void) {
    static esp_netif_obj netif;
    return &netif;
}
esp_netif_t *esp_netif_create_default_wifi_ap(void) {
    static esp_netif_obj netif;
    ++wifi::access_points;
    return &netif;
}
esp_err_t esp_netif_set_dns_info(esp_netif_t *, esp_netif_dns_type_t, esp_netif_dns_info_t *dns) {
    dhcp::name_server = dns->ip.u_addr.ip4.addr;
    return ESP_OK;
}
esp_err_t esp_netif_dhcps_option(esp_netif_t *, esp_netif_dhcp_option_mode_t, esp_netif_dhcp_option_id_t, void *value,
                                 uint32_t) {
    dhcp::offer = *static_cast<std::uint8_t *>(value);
    return ESP_OK;
}
esp_err_t esp_netif_dhcps_start(esp_netif_t *) {
    ++dhcp::starts;
    return ESP_OK;
}
esp_err_t esp_netif_dhcps_stop(esp_netif_t *) {
    return ESP_FAIL;  // it has not started
}
esp_err_t esp_netif_set_hostname(esp_netif_t *, const char *) {
    return ESP_OK;
}
esp_err_t esp_netif_get_ip_info(esp_netif_t *, esp_netif_ip_info_t *info) {
    info->ip.addr = 0x1b04a8c0;  // 192.168.4.27, in network order
    return ESP_OK;
}
char *esp_ip4addr_ntoa(const esp_ip4_addr_t *a, char *buffer, int size) {
    const std::uint32_t ip = a->addr;
    std::snprintf(buffer, static_cast<std::size_t>(size), "%u.%u.%u.%u", ip & 255, ip >> 8 & 255, ip >> 16 & 255,
                  ip >> 24);
    return buffer;
}
esp_err_t esp_netif_sntp_init(const esp_sntp_config_t *config) {
    sntp::callback = config->sync_cb;
    sntp::server = config->servers[0];
    return ESP_OK;
}

esp_err_t esp_wifi_init(const wifi_init_config_t *) {
    return wifi::init_result;
}
esp_err_t esp_wifi_set_storage(wifi_storage_t) {
    return ESP_OK;
}
esp_err_t esp_wifi_set_mode(wifi_mode_t) {
    return ESP_OK;
}
esp_err_t esp_wifi_start(void) {
    ++wifi::starts;
    return ESP_OK;
}
esp_err_t esp_wifi_connect(void) {
    ++wifi::connects;
    if (wifi::connect_result != ESP_OK) return wifi::connect_result;
    if (wifi::connecting || wifi::associated) {  // as the real one, which ends the connection besides
        ++wifi::collisions;
        return ESP_ERR_INVALID_STATE;
    }
    wifi::connecting = true;
    return ESP_OK;
}
esp_err_t esp_wifi_disconnect(void) {
    ++wifi::disconnects;
    if (wifi::connecting || wifi::associated) wifi::lost(WIFI_REASON_ASSOC_LEAVE);
    return ESP_OK;
}
esp_err_t esp_wifi_set_config(wifi_interface_t, wifi_config_t *config) {
    wifi::stored = *config;
    return ESP_OK;
}
esp_err_t esp_wifi_get_config(wifi_interface_t, wifi_config_t *config) {
    *config = wifi::stored;
    return ESP_OK;
}
esp_err_t esp_wifi_restore(void) {
    wifi::stored = {};
    return ESP_OK;
}
esp_err_t esp_wifi_sta_get_ap_info(wifi_ap_record_t *info) {
    if (!wifi::associated) return ESP_FAIL;
    *info = {};
    std::memcpy(info->ssid, "lab", 3);
    info->primary = 6;
    info->rssi = -52;
    return ESP_OK;
}
esp_err_t esp_wifi_scan_start(const wifi_scan_config_t *, bool) {
    return wifi::scan_result;
}
esp_err_t esp_wifi_scan_get_ap_records(uint16_t *number, wifi_ap_record_t *records) {
    if (*number > wifi::found.size()) *number = static_cast<uint16_t>(wifi::found.size());
    for (uint16_t i = 0; i < *number; ++i)
        records[i] = wifi::found[i];
    return ESP_OK;
}

esp_err_t network_prov_mgr_init(network_prov_mgr_config_t config) {
    provisioning::handler = config.app_event_handler;
    provisioning::initialized = true;
    return ESP_OK;
}
void network_prov_scheme_softap_set_httpd_handle(void *handle) {
    provisioning::shared_server = handle;
}
void network_prov_mgr_deinit(void) {
    if (provisioning::shared_server != nullptr) provisioning::shared_server_ran = web::running;
    provisioning::initialized = provisioning::started = false;
}
esp_err_t network_prov_mgr_start_provisioning(network_prov_security_t, const void *params, const char *name,
                                              const char *) {
    const auto *p = static_cast<const network_prov_security2_params_t *>(params);
    provisioning::salt.assign(p->salt, p->salt_len);
    provisioning::verifier.assign(p->verifier, p->verifier_len);
    provisioning::service = name;
    wifi::stored = {};  // as the real manager does, in RAM
    provisioning::started = true;
    return ESP_OK;
}
esp_err_t network_prov_mgr_reset_wifi_sm_state_on_failure(void) {
    ++provisioning::resets;
    return ESP_OK;
}
esp_err_t network_prov_mgr_configure_wifi_sta(wifi_config_t *config) {
    if (provisioning::configure_result != ESP_OK) return provisioning::configure_result;
    provisioning::configured = *config;
    return ESP_OK;
}
void network_prov_scheme_ble_event_cb_free_btdm(void *, network_prov_cb_event_t, void *) {}
esp_err_t esp_srp_gen_salt_verifier(const char *, int, const char *pass, int length, char **salt, int salt_length,
                                    char **verifier, int *verifier_length) {
    if (provisioning::srp_result != ESP_OK) return provisioning::srp_result;
    provisioning::code.assign(pass, static_cast<std::size_t>(length));
    *salt = static_cast<char *>(std::calloc(1, static_cast<std::size_t>(salt_length)));
    *verifier_length = 384;
    *verifier = static_cast<char *>(std::malloc(384));
    std::memset(*verifier, 'v', 384);
    return ESP_OK;
}

esp_err_t mdns_init(void) {
    return ESP_OK;
}
esp_err_t mdns_hostname_set(const char *) {
    return ESP_OK;
}
esp_err_t mdns_service_add(const char *, const char *, const char *, uint16_t, mdns_txt_item_t[], size_t) {
    return ESP_OK;
}
}
