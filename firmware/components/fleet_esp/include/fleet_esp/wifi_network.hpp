// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/backoff.hpp"
#include "fleet/ports.hpp"

#include "esp_event.h"
#include "esp_netif.h"
#include "esp_wifi.h"

namespace fleet::esp {

// WifiNetwork is one Wi-Fi station. It reconnects with back-off,
// except while somebody else drives the station: see hand_over.
class WifiNetwork final : public Network {
public:
    WifiNetwork(Executor &executor, const System &system) : executor_(executor), backoff_(system, 1000, 60000) {}

    // start brings up TCP/IP and the radio. The default event loop must exist.
    Status start(const char *host_name);
    bool knows_network() const;
    // connect begins with what is stored, and keeps trying.
    void connect();
    // hand_over stops the reconnecting; connect takes it up again, and restore
    // does so with the credentials of now.
    void hand_over();
    // join stores other credentials and connects with them. restore goes back to
    // the ones before.
    Status join(std::string_view ssid, std::string_view password);
    Status restore();
    Status forget();

    bool connected() const override { return connected_; }
    int rssi() const override;
    int channel() const override;
    std::string ip() const override;
    std::string ssid() const override;

private:
    static void on_event(void *self, esp_event_base_t base, std::int32_t id, void *data);
    void lost(int reason);
    void lost_address();
    void gained();
    void went_down();
    void start_over();
    void try_now();
    void give_up();
    void retry();
    bool is_wrong_password(int reason);

    Executor &executor_;
    Backoff backoff_;
    esp_netif_t *netif_ = nullptr;
    wifi_config_t before_ = {};  // for restore
    bool driven_ = false;        // by us
    bool connected_ = false;     // with an address
    bool trying_ = false;        // an attempt of ours is under way: until an event, or its time is up
    bool leaving_ = false;       // the driver ends what was before
    unsigned turn_ = 0;          // of trying_ or leaving_
    bool retry_planned_ = false;
    int timeouts_ = 0;  // of the handshake, in a row
};

// make_station_config is false when the texts do not fit.
bool make_station_config(std::string_view ssid, std::string_view password, wifi_config_t *config);

}  // namespace fleet::esp
