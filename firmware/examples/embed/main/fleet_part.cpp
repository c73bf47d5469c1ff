// SPDX-License-Identifier: Apache-2.0
#include "fleet_part.hpp"

#include "product.hpp"

#include "fleet/tools/toolkit.hpp"
#include "fleet/unit.hpp"
#include "fleet_esp/efuse_identity.hpp"
#include "fleet_esp/esp_clock.hpp"
#include "fleet_esp/esp_crypto.hpp"
#include "fleet_esp/esp_system.hpp"
#include "fleet_esp/flash_core_dump.hpp"
#include "fleet_esp/http_client.hpp"
#include "fleet_esp/log_capture.hpp"
#include "fleet_esp/mqtt_transport.hpp"
#include "fleet_esp/nvs_store.hpp"
#include "fleet_esp/ota_updater.hpp"
#include "fleet_esp/task_executor.hpp"

#include "esp_event.h"
#include "esp_log.h"
#include "esp_netif.h"

#include <memory>

namespace {

using namespace fleet;

constexpr const char *TAG = "fleet";

// A tool of the product's, next to the standard ones.
constexpr ToolInfo counter_info =
    ToolInfo("self.product.count", "How often the product's button was pressed.").Repeats(Repeat::reads);

Status read_counter(void *, Call &call) {
    return call.result.integer(product_count());
}

// FleetPart lives as long as the device is on. Everything but its construction is on the executor.
class FleetPart {
public:
    FleetPart(esp::TaskExecutor &executor, esp::NvsStore &store)
        : executor_(executor), transport_(executor, {}), machine_(machine(store)) {}

    void start(const char *poll_url) {
        UnitOptions options;
        options.poll_url = poll_url;
        options.first_poll_jitter_ms = 3000;
        unit_ = std::make_unique<Unit>(machine_, options);
        unit_->on_claim = [](const Activation &a) { ESP_LOGW(TAG, "claim this device with code %s", a.code.c_str()); };
        kit_.machine = &machine_;
        kit_.unit = unit_.get();
        kit_.with_log = esp::with_log;
        unit_->start();
        const bool safe = unit_->crashes().safe_mode();  // after three crashes: without the product's own tools
        Status added = add_all_tools(unit_->tools(), kit_, safe);
        if (added.ok() && !safe) added = unit_->tools().add(counter_info, read_counter, nullptr);
        if (!added.ok()) ESP_LOGE(TAG, "%s", added.why);
        esp_event_handler_instance_register(IP_EVENT, IP_EVENT_STA_GOT_IP, on_address, this, nullptr);
    }

private:
    // What the product has already, as a screen or a lamp, it enters here.
    Machine machine(esp::NvsStore &store) {
        Machine m;
        m.board = {"example", "embed", "example", "en-US"};
        m.executor = &executor_;
        m.clock = &clock_;
        m.transport = &transport_;
        m.http = &http_;
        m.store = &store;
        m.updater = &updater_;
        m.system = &system_;
        m.identity = &identity_;
        m.core_dump = &core_dump_;
        m.crypto = &crypto_;
        return m;
    }

    static void on_address(void *self, esp_event_base_t, std::int32_t, void *) {
        auto *part = static_cast<FleetPart *>(self);
        part->executor_.post([part] { part->unit_->network_up(); });
    }

    esp::TaskExecutor &executor_;
    esp::EspClock clock_;
    esp::EspSystem system_;
    esp::MqttTransport transport_;
    esp::EspHttpClient http_{esp::HttpOptions{}};
    esp::OtaUpdater updater_;
    esp::EfuseIdentity identity_;
    esp::FlashCoreDump core_dump_;
    esp::EspCrypto crypto_;
    Machine machine_;
    std::unique_ptr<Unit> unit_;
    Toolkit kit_;
};

}  // namespace

void start_fleet(const char *poll_url) {
    static esp::TaskExecutor executor;
    static esp::NvsStore store;
    Status status = esp::start_log_capture();
    if (status.ok()) status = store.open("fleet");
    if (status.ok()) status = executor.start();
    if (!status.ok()) {
        ESP_LOGE(TAG, "without the fleet: %s", status.why);
        return;
    }
    static FleetPart part(executor, store);
    executor.post([poll_url] { part.start(poll_url); });
}
