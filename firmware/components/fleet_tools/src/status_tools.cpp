// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

namespace fleet {

namespace {

constexpr ToolInfo status_info =
    ToolInfo("self.get_device_status",
             "Provides the real-time information of the device, including the current status of the audio speaker, "
             "screen, battery, network and chip. Use this tool to answer questions about the current condition of the "
             "device, "
             "and as the first step to control it.")
        .Repeats(Repeat::reads);

const char *signal_of(int rssi) {
    return rssi >= -60 ? "strong" : rssi >= -70 ? "medium" : "weak";
}

void write_screen(JsonWriter &w, const Display &display) {
    w.begin_object("screen");
    const Result<int> brightness = display.brightness();
    if (brightness.ok()) w.member("brightness", brightness.value());
    const std::string theme = display.theme();
    if (!theme.empty()) w.member("theme", theme);
    w.end_object();
}

void write_battery(JsonWriter &w, const Battery &battery) {
    const Result<int> level = battery.level();
    if (!level.ok()) return;
    w.begin_object("battery").member("level", level.value()).member("charging", battery.charging()).end_object();
}

void write_network(JsonWriter &w, const Network &network) {
    w.begin_object("network");
    w.member("type", "wifi").member("ssid", network.ssid());
    w.member("signal", signal_of(network.rssi()));
    w.end_object();
}

// Tenths, without floating point.
void write_temperature(JsonWriter &w, int tenths) {
    const unsigned size = tenths < 0 ? 0u - static_cast<unsigned>(tenths) : static_cast<unsigned>(tenths);
    char number[16];
    JsonWriter text(number, sizeof number);
    text.append(tenths < 0 ? "-" : "").digits(size / 10).append(".").digits(size % 10);
    w.begin_object("chip").key("temperature").raw(text.view()).end_object();
}

Status get_device_status(void *context, Call &call) {
    const Machine &m = *kit_of(context).machine;
    JsonWriter &w = call.result.begin_json().begin_object();
    if (m.speaker != nullptr) w.begin_object("audio_speaker").member("volume", m.speaker->volume()).end_object();
    if (m.display != nullptr) write_screen(w, *m.display);
    if (m.battery != nullptr) write_battery(w, *m.battery);
    if (m.network != nullptr) write_network(w, *m.network);
    const Result<int> temperature = m.system->temperature();
    if (temperature.ok()) write_temperature(w, temperature.value());
    w.end_object();
    return call.result.end_json();
}

}  // namespace

Status add_status_tools(ToolRegistry &registry, Toolkit &kit) {
    return registry.add(status_info, get_device_status, &kit);
}

}  // namespace fleet
