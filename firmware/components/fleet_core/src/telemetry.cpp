// SPDX-License-Identifier: Apache-2.0
#include "fleet/telemetry.hpp"

namespace fleet {
namespace {

void write_memory(JsonWriter &w, const System &system) {
    w.begin_object("heap");
    w.member("free", system.heap_free()).member("min", system.heap_min()).member("largest", system.heap_largest());
    w.end_object();
}

// The object is left out where the machine knows of no task.
void write_stacks(JsonWriter &w, const System &system) {
    bool open = false;
    system.stacks([&](std::string_view task, std::uint32_t never_used) {
        if (!open) w.begin_object("stacks");
        open = true;
        w.key(task).integer(never_used);
    });
    if (open) w.end_object();
}

void write_network(JsonWriter &w, const Network &network) {
    w.begin_object("network").member("ip", network.ip()).member("ssid", network.ssid());
    if (network.rssi() != 0) w.member("rssi_dbm", network.rssi()).member("channel", network.channel());
    w.end_object();
}

void write_slot(JsonWriter &w, const Updater &updater) {
    const SlotInfo slot = updater.running();
    w.begin_object("slot").member("label", slot.label).member("state", to_string(slot.state)).end_object();
}

void write_queue(JsonWriter &w, const Vitals &v) {
    w.begin_object("queue").member("waiting", v.queued).member("dropped", v.dropped).end_object();
}

}  // namespace

void write_brief(JsonWriter &w, const Machine &machine, const Vitals &vitals) {
    const System &system = *machine.system;
    w.member("uptime_s", machine.clock->mono_us() / 1'000'000);
    if (machine.clock->synced()) w.member("at", machine.clock->unix_ms());
    w.member("version", system.app().version).member("reset_reason", to_string(system.reset_reason()));
    w.member("boots", vitals.boots).member("crashes", vitals.crashes).member("reconnects", vitals.reconnects);
    if (vitals.safe_mode) w.member("safe_mode", true);
    w.member("config_version", vitals.config_version);
    write_memory(w, system);
}

void write_telemetry(JsonWriter &w, const Machine &machine, const Vitals &vitals) {
    write_brief(w, machine, vitals);
    write_queue(w, vitals);
    write_stacks(w, *machine.system);
    if (machine.network) write_network(w, *machine.network);
    if (machine.updater) write_slot(w, *machine.updater);
    if (const Result<int> t = machine.system->temperature(); t.ok()) w.member("temperature_dc", t.value());
    if (machine.core_dump) w.member("core_dump", machine.core_dump->present());
    if (vitals.birth) w.member("birth", true);
}

}  // namespace fleet
