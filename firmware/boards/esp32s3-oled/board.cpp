// SPDX-License-Identifier: Apache-2.0
// An ESP32-S3-DevKitC-1 on a breadboard with an OLED of 128 by 64 dots (SSD1306), wired as the
// "bread-compact" boards of stock devices are: SDA 41, SCL 42. The RGB lamp is the module's.
#include "fleet_esp/board.hpp"
#include "fleet_esp/lamps.hpp"
#include "fleet_esp/oled_display.hpp"

#include "esp_log.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 48;  // 38 on boards of version 1.1
constexpr int sda_pin = 41;
constexpr int scl_pin = 42;
constexpr int screen_height = 64;  // 32 for the flat screens; nothing on the bus says which it is
constexpr int boot_button = 0;

OledWiring wiring() {
    OledWiring w;
    w.sda = sda_pin;
    w.scl = scl_pin;
    w.height = screen_height;
    return w;
}

// A part that fails is no reason for a device not to come up.
bool works(const Status &status) {
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    return status.ok();
}

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32s3-oled", "fleetd", "en-US"};
}

Status add_board_tools(ToolRegistry &) {
    return {};
}

int board_button() {
    return boot_button;
}

void start_board(Machine &machine) {
    static OledDisplay display;
    static RgbLamp lamp;
    if (works(display.start(wiring()))) machine.display = &display;
    if (works(lamp.start(lamp_pin))) machine.led = &lamp;
}

}  // namespace fleet::esp
