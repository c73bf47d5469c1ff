// SPDX-License-Identifier: Apache-2.0
// An ESP32-S3-DevKitC-1 with a 2-inch ST7789 of 320 by 240 dots and a passive
// buzzer. The README shows the wiring; every part may be missing.
#include "fleet_esp/board.hpp"
#include "fleet_esp/buzzer.hpp"
#include "fleet_esp/lamps.hpp"
#include "fleet_esp/lcd_display.hpp"

#include "esp_log.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 48;  // 38 on boards of version 1.1
constexpr int buzzer_pin = 15;
constexpr int backlight_pin = 14;
constexpr int boot_button = 0;

PanelWiring wiring() {
    PanelWiring w;
    w.data = 11;
    w.clock = 12;
    w.select = 10;
    w.command = 9;
    w.reset = 13;
    w.mirror_x = true;
    return w;
}

// A part that fails is no reason for a device not to come up.
bool works(const Status &status) {
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    return status.ok();
}

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32s3-lcd", "fleetd", "en-US"};
}

Status add_board_tools(ToolRegistry &) {
    return {};
}

int board_button() {
    return boot_button;
}

void start_board(Machine &machine) {
    static LcdDisplay display;
    static RgbLamp lamp;
    static Buzzer buzzer(*machine.executor);
    if (works(display.start(wiring(), backlight_pin))) machine.display = &display;
    if (works(lamp.start(lamp_pin))) machine.led = &lamp;
    if (works(buzzer.start(buzzer_pin))) machine.speaker = &buzzer;
}

}  // namespace fleet::esp
