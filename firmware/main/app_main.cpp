// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include "fleet_esp/log_capture.hpp"
#include "fleet_esp/nvs_store.hpp"

#include "esp_event.h"
#include "esp_log.h"
#include "esp_system.h"

namespace {

constexpr const char *TAG = "main";

// What fails here leaves nothing to work with; after a while it may work.
void insist(const fleet::Status &status) {
    if (status.ok()) return;
    ESP_LOGE(TAG, "%s: restarting", status.why);
    vTaskDelay(pdMS_TO_TICKS(10000));
    esp_restart();
}

}  // namespace

extern "C" void app_main() {
    static fleet::esp::TaskExecutor executor;
    static fleet::esp::NvsStore store;
    insist(fleet::esp::start_log_capture());
    insist(store.open("fleet"));
    ESP_ERROR_CHECK(esp_event_loop_create_default());
    insist(executor.start());
    static fleet::esp::App app(executor, store);
    executor.post([] { app.start(); });
}
