// SPDX-License-Identifier: Apache-2.0
// An ESP32-S3 with an OV2640 or OV5640, wired as on the ESP32-S3-EYE, which the boards
// sold as "ESP32-S3-WROOM CAM" follow.
#include "fleet_esp/board.hpp"
#include "fleet_esp/dvp_camera.hpp"
#include "fleet_esp/lamps.hpp"

#include "esp_log.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 48;
constexpr int boot_button = 0;

CameraWiring wiring() {
    CameraWiring w;
    w.clock = 15;
    w.i2c_data = 4;
    w.i2c_clock = 5;
    w.frame = 6;
    w.line = 7;
    w.dot = 13;
    w.data = {11, 9, 8, 10, 12, 18, 17, 16};
    return w;
}

bool works(const Status &status) {
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    return status.ok();
}

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32s3-cam", "fleetd", "en-US"};
}

Status add_board_tools(ToolRegistry &) {
    return {};
}

int board_button() {
    return boot_button;
}

void start_board(Machine &machine) {
    static RgbLamp lamp;
    static DvpCamera camera;
    if (works(lamp.start(lamp_pin))) machine.led = &lamp;
    if (works(camera.start(wiring()))) machine.camera = &camera;
}

}  // namespace fleet::esp
