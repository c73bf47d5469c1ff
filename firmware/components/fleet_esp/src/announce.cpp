// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/announce.hpp"

#include "fleet_esp/status_of.hpp"

#include "sdkconfig.h"

#if CONFIG_FLEET_MDNS
#include "mdns.h"
#endif

namespace fleet::esp {

std::string host_name(const System &system) {
    std::string name = "fleet-";
    const std::string mac = system.mac();
    for (std::size_t i = 9; i < mac.size(); ++i) {
        if (mac[i] != ':') name.push_back(mac[i]);
    }
    return name;
}

#if CONFIG_FLEET_MDNS

Status announce(const System &system, const BoardInfo &board) {
    constexpr std::uint16_t no_port = 9;  // "discard": DNS-SD wants one
    const std::string name = host_name(system), mac = system.mac(), version = system.app().version;
    mdns_txt_item_t texts[] = {{"id", mac.c_str()}, {"board", board.name}, {"version", version.c_str()}};
    esp_err_t err = mdns_init();
    if (err == ESP_OK) err = mdns_hostname_set(name.c_str());
    if (err == ESP_OK) err = mdns_service_add(name.c_str(), "_fleet", "_tcp", no_port, texts, 3);
    return status_of(err, "the device was not announced");
}

#else

Status announce(const System &, const BoardInfo &) {
    return {};
}

#endif

}  // namespace fleet::esp
