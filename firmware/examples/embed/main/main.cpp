// SPDX-License-Identifier: Apache-2.0
// A product that counts, with its own Wi-Fi. One line makes it a device of fleetd.
#include "fleet_part.hpp"
#include "product.hpp"

#include "esp_event.h"
#include "esp_netif.h"
#include "esp_wifi.h"

#include <atomic>

namespace {

std::atomic<int> count{0};

// The credentials are in NVS already, from the product's own setup.
void start_wifi() {
    ESP_ERROR_CHECK(esp_netif_init());
    esp_netif_create_default_wifi_sta();
    const wifi_init_config_t init = WIFI_INIT_CONFIG_DEFAULT();
    ESP_ERROR_CHECK(esp_wifi_init(&init));
    ESP_ERROR_CHECK(esp_wifi_set_mode(WIFI_MODE_STA));
    ESP_ERROR_CHECK(esp_wifi_start());
    ESP_ERROR_CHECK(esp_wifi_connect());
}

}  // namespace

void start_product() {
    ESP_ERROR_CHECK(esp_event_loop_create_default());
    ++count;
}

int product_count() {
    return count;
}

extern "C" void app_main() {
    start_product();
    start_fleet("https://fleet.example.org/xiaozhi/ota/");  // it opens NVS, which Wi-Fi needs
    start_wifi();
}
