// SPDX-License-Identifier: Apache-2.0
// The example of a board with tools: an ESP32-C3 SuperMini with a relay on GPIO 4
// and a thermometer LM75 (SDA 5, SCL 6).
#include "fleet_esp/board.hpp"
#include "fleet_esp/lamps.hpp"
#include "fleet_esp/lm75.hpp"
#include "fleet_esp/relay.hpp"

#include "esp_log.h"

#include <cstdlib>
#include <string>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "board";
constexpr int lamp_pin = 8;
constexpr int relay_pin = 4;
constexpr int sda_pin = 5;
constexpr int scl_pin = 6;
constexpr int boot_button = 9;

PlainLamp lamp;
Relay relay;
Lm75 thermometer;
bool has_relay = false;
bool has_thermometer = false;

// A part that fails is no reason for a device not to come up.
bool works(const Status &status) {
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    return status.ok();
}

constexpr Property relay_properties[] = {
    Property::Bool("on").Required().Describe("true closes the contact"),
};
constexpr ToolInfo relay_info = ToolInfo("self.relay.set", "Switch the relay.").With(relay_properties);
constexpr ToolInfo thermometer_info =
    ToolInfo("self.thermometer.read", "Read the temperature of the room, in degrees Celsius.").Repeats(Repeat::reads);

Status set_relay(void *, Call &call) {
    const Status status = relay.set(call.args.boolean("on"));
    return status.ok() ? call.result.boolean(true) : status;
}

Status read_thermometer(void *, Call &call) {
    const Result<int> tenths = thermometer.read();
    if (!tenths.ok()) return tenths.status();
    const int t = tenths.value();
    std::string text = t < 0 ? "-" : "";
    text += std::to_string(std::abs(t) / 10) + "." + std::to_string(std::abs(t) % 10);
    return call.result.text(text);
}

}  // namespace

BoardInfo board_info() {
    return {"fleet-unit", "esp32c3-relay", "fleetd", "en-US"};
}

int board_button() {
    return boot_button;
}

void start_board(Machine &machine) {
    if (works(lamp.start(lamp_pin, true))) machine.led = &lamp;
    has_relay = works(relay.start(relay_pin));
    has_thermometer = works(thermometer.start(sda_pin, scl_pin));
}

Status add_board_tools(ToolRegistry &registry) {
    Status status;
    if (has_relay) status = registry.add(relay_info, set_relay, nullptr);
    if (status.ok() && has_thermometer) status = registry.add(thermometer_info, read_thermometer, nullptr);
    return status;
}

}  // namespace fleet::esp
