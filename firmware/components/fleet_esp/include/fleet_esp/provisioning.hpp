// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/portal_dns.hpp"
#include "fleet_esp/portal_server.hpp"
#include "fleet_esp/wifi_network.hpp"

#include "network_provisioning/manager.h"

#include <string>

namespace fleet::esp {

// Invitation is what somebody needs to give the device its Wi-Fi: show it.
struct Invitation {
    std::string service;  // name of the access point, or of the Bluetooth device
    std::string user;
    std::string code;  // new at each start
    std::string qr;    // for Espressif's provisioning apps
};

// SetupPage is what the page on the access point has, for phones without an app.
struct SetupPage {
    std::string fleet;  // URL of the boot poll that is in use
    // Without the code, whoever joins the access point may submit the page.
    bool asks_code = true;
};

// Provisioning lets a phone hand over Wi-Fi credentials, by an access point of
// the device's own or by Bluetooth (Kconfig), over SRP6a: who does not see the
// code learns nothing by listening. The access point has a page as well, whose
// form travels in the clear.
class Provisioning {
public:
    Provisioning(Executor &executor, WifiNetwork &network, const System &system)
        : executor_(executor), network_(network), system_(system), page_(executor), name_server_(executor) {
        page_.on_input = [this](const PortalInput &input) { accept(input); };
    }

    // start runs until credentials have worked.
    Status start(const char *name_prefix, const SetupPage &page);
    bool running() const { return running_; }
    // close ends it without new credentials; the network goes back to the old.
    void close();
    // use tries credentials that came another way, by the serial line.
    Status use(std::string_view ssid, std::string_view password);

    std::function<void(const Invitation &)> on_invite;
    // on_fleet has another URL of the boot poll, from the page, once the Wi-Fi that came with it works.
    std::function<void(const std::string &url)> on_fleet;

private:
    static void on_event(void *self, network_prov_cb_event_t event, void *data);
    void handle(network_prov_cb_event_t event);
    Status start_manager();
    void start_page(const SetupPage &page, const std::string &code);
    void stop_page();
    void list_networks();
    void accept(const PortalInput &input);
    Status start_service(const Invitation &invitation);
    void end();

    Executor &executor_;
    WifiNetwork &network_;
    const System &system_;
    esp_netif_t *access_point_ = nullptr;  // for good: it may be wanted again
    std::string salt_, verifier_;          // the manager keeps pointers to them
    network_prov_security2_params_t params_ = {};
    PortalServer page_;
    PortalDns name_server_;
    std::string fleet_, new_fleet_;  // of the page: in use, and submitted with the last credentials
    bool running_ = false;
};

}  // namespace fleet::esp
