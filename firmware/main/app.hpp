// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/tools/toolkit.hpp"
#include "fleet/unit.hpp"
#include "fleet_esp/efuse_identity.hpp"
#include "fleet_esp/esp_clock.hpp"
#include "fleet_esp/esp_crypto.hpp"
#include "fleet_esp/esp_system.hpp"
#include "fleet_esp/flash_core_dump.hpp"
#include "fleet_esp/http_client.hpp"
#include "fleet_esp/improv_service.hpp"
#include "fleet_esp/mqtt_transport.hpp"
#include "fleet_esp/ota_updater.hpp"
#include "fleet_esp/provisioning.hpp"
#include "fleet_esp/reset_button.hpp"
#include "fleet_esp/serial_line.hpp"
#include "fleet_esp/task_executor.hpp"
#include "fleet_esp/wifi_network.hpp"

#include <memory>

namespace fleet::esp {

// App is the whole program: the ports, the unit on top of them, and how the
// device comes by its Wi-Fi. It lives as long as the device is on.
class App {
public:
    App(TaskExecutor &executor, KvStore &store);

    // start runs on the executor, like everything after it.
    void start();

private:
    Machine machine();
    UnitOptions options() const;
    void start_network();
    SetupPage setup_page(bool asks_code) const;
    void change_fleet(const std::string &url);
    void watch_network();
    void start_improv();
    void start_unit();
    void invite(const Invitation &invitation);
    void show_claim(const Activation &activation);
    void start_over();

    TaskExecutor &executor_;
    KvStore &store_;
    EspClock clock_;
    EspSystem system_;
    MqttTransport transport_;
    EspHttpClient http_;
    OtaUpdater updater_;
    WifiNetwork network_;
    EfuseIdentity identity_;
    FlashCoreDump core_dump_;
    EspCrypto crypto_;
    Provisioning provisioning_;
    SerialLine serial_;
    ResetButton button_;
    Machine machine_;
    std::unique_ptr<ImprovService> improv_;
    std::unique_ptr<Unit> unit_;
    Toolkit kit_;
    int until_invite_ = 0;  // minutes until provisioning opens, or closes
    bool unit_started_ = false;
};

}  // namespace fleet::esp
