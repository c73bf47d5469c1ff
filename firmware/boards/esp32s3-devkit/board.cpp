// SPDX-License-Identifier: Apache-2.0
// An ESP32-S3-DevKitC-1 without a screen, with or without PSRAM: an RGB lamp on GPIO 48
// (38 on boards of version 1.1).
#include "fleet_esp/board.hpp"
#include "fleet_esp/lamps.hpp"

#include "esp_log.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 48;
constexpr int boot_button = 0;

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32s3-devkit", "fleetd", "en-US"};
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
