// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/portal_dns.hpp"

#include "fleet/captive_dns.hpp"
#include "fleet_esp/status_of.hpp"

#include "esp_log.h"
#include "lwip/sockets.h"

#include <cstring>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "portal";
constexpr std::uint16_t dns_port = 53;
constexpr std::uint32_t poll_ms = 50;
constexpr int max_answers_per_poll = 8;

// A phone asks the name server that DHCP gave it. Since ESP-IDF 6.0 none is given unless this
// is set.
esp_err_t offer_name_server(esp_netif_t *access_point, const esp_ip4_addr_t &address) {
    esp_netif_dns_info_t dns = {};
    dns.ip.u_addr.ip4 = address;
    dns.ip.type = ESP_IPADDR_TYPE_V4;
    std::uint8_t offer = 2;              // OFFER_DNS of lwIP's DHCP server
    esp_netif_dhcps_stop(access_point);  // fails if it has not started yet
    esp_err_t err = esp_netif_set_dns_info(access_point, ESP_NETIF_DNS_MAIN, &dns);
    if (err == ESP_OK) {
        err =
            esp_netif_dhcps_option(access_point, ESP_NETIF_OP_SET, ESP_NETIF_DOMAIN_NAME_SERVER, &offer, sizeof offer);
    }
    const esp_err_t started = esp_netif_dhcps_start(access_point);
    return err == ESP_OK ? started : err;
}

}  // namespace

Status PortalDns::start(esp_netif_t *access_point) {
    if (socket_ >= 0) return {};
    esp_netif_ip_info_t info = {};
    esp_err_t err = esp_netif_get_ip_info(access_point, &info);
    if (err != ESP_OK) return status_of(err, "the access point has no address");
    std::memcpy(address_.data(), &info.ip.addr, address_.size());  // it is in network order
    err = offer_name_server(access_point, info.ip);
    if (err != ESP_OK) ESP_LOGW(TAG, "DHCP names no name server: %s", esp_err_to_name(err));
    const Status opened = open();
    if (!opened.ok()) {
        stop();
        return opened;
    }
    poll(++run_);
    return {};
}

Status PortalDns::open() {
    socket_ = lwip_socket(AF_INET, SOCK_DGRAM, 0);
    if (socket_ < 0) return {Code::no_memory, "no socket for the access point's name server"};
    sockaddr_in here = {};
    here.sin_family = AF_INET;
    here.sin_port = static_cast<std::uint16_t>(dns_port << 8 | dns_port >> 8);  // both chips are little-endian
    std::memcpy(&here.sin_addr, address_.data(), address_.size());              // not on the network that it joins
    if (lwip_bind(socket_, reinterpret_cast<sockaddr *>(&here), sizeof here) == 0) return {};
    return {Code::io, "the access point's name server did not start"};
}

void PortalDns::stop() {
    if (socket_ >= 0) lwip_close(socket_);
    socket_ = -1;
    ++run_;
}

void PortalDns::poll(unsigned run) {
    if (run != run_) return;
    for (int i = 0; i < max_answers_per_poll && answer_one(); ++i) {
    }
    executor_.post_after(poll_ms, [this, run] { poll(run); });
}

bool PortalDns::answer_one() {
    std::uint8_t query[max_dns_message], answer[max_dns_message];
    sockaddr_storage from = {};
    socklen_t from_size = sizeof from;
    const auto size =
        lwip_recvfrom(socket_, query, sizeof query, MSG_DONTWAIT, reinterpret_cast<sockaddr *>(&from), &from_size);
    if (size < 0) return false;
    const std::size_t n = answer_dns({query, static_cast<std::size_t>(size)}, address_, {answer, sizeof answer});
    if (n > 0) {
        (void)lwip_sendto(socket_, answer, n, MSG_DONTWAIT, reinterpret_cast<sockaddr *>(&from), from_size);
    }
    return true;
}

}  // namespace fleet::esp
