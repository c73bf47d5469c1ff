// SPDX-License-Identifier: Apache-2.0
// An ESP32-C6-DevKitC-1 with 8 MB of flash: an RGB lamp on GPIO 8, no screen.
#include "fleet_esp/board.hpp"
#include "fleet_esp/lamps.hpp"

#include "esp_log.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 8;
constexpr int boot_button = 9;

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32c6-devkit", "fleetd", "en-US"};
}

Status add_board_tools(ToolRegistry &) {
    return {};
}

int board_button() {
    return boot_button;
}

void start_board(Machine &machine) {
    static RgbLamp lamp;
    const Status status = lamp.start(lamp_pin);
    if (status.ok()) {
        machine.led = &lamp;
    } else {
        ESP_LOGW(TAG, "%s", status.why);
    }
}

}  // namespace fleet::esp
