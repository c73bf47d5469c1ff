// SPDX-License-Identifier: Apache-2.0
// An ESP32-DevKitC, or one of its many likes: a blue lamp on GPIO 2.
#include "fleet_esp/board.hpp"
#include "fleet_esp/lamps.hpp"

#include "esp_log.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 2;
constexpr int boot_button = 0;

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32-devkit", "fleetd", "en-US"};
}

Status add_board_tools(ToolRegistry &) {
    return {};
}

int board_button() {
    return boot_button;
}

void start_board(Machine &machine) {
    static PlainLamp lamp;
    const Status status = lamp.start(lamp_pin, false);
    if (status.ok()) {
        machine.led = &lamp;
    } else {
        ESP_LOGW(TAG, "%s", status.why);
    }
}

}  // namespace fleet::esp
