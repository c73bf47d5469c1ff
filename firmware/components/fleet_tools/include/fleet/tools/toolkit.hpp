// SPDX-License-Identifier: Apache-2.0
// What the tools work with. The program fills it once; it outlives the registry.
#pragma once

#include "fleet/log_ring.hpp"
#include "fleet/ports.hpp"
#include "fleet/unit.hpp"

#include <cstddef>
#include <cstdint>

namespace fleet {

// How large a picture a device takes into memory to show it.
constexpr std::size_t default_picture_bytes = 256 * 1024;

// LogStream sends the log while it is written, for a time.
struct LogStream {
    std::int64_t until_us = 0;
    std::uint32_t next = 0;  // number of the line
    LogLevel most = LogLevel::info;
    bool running = false;
};

struct Toolkit {
    const Machine *machine = nullptr;
    Unit *unit = nullptr;
    // with_log locks the log and hands it over; empty: no log is kept.
    Hook<void(FunctionRef<void(LogRing &)>)> with_log;
    std::size_t picture_bytes = default_picture_bytes;

    // What the tools keep between calls.
    LogStream stream;
    bool shown_online = false;
};

// The groups of tools, in the order of the list. A group adds what the board
// has parts for, and nothing where it has none.
Status add_status_tools(ToolRegistry &registry, Toolkit &kit);
Status add_sound_tools(ToolRegistry &registry, Toolkit &kit);
Status add_screen_tools(ToolRegistry &registry, Toolkit &kit);
Status add_picture_tools(ToolRegistry &registry, Toolkit &kit);
Status add_led_tools(ToolRegistry &registry, Toolkit &kit);
Status add_system_tools(ToolRegistry &registry, Toolkit &kit);
Status add_upgrade_tools(ToolRegistry &registry, Toolkit &kit);
Status add_core_dump_tools(ToolRegistry &registry, Toolkit &kit);
Status add_config_tools(ToolRegistry &registry, Toolkit &kit);
Status add_log_tools(ToolRegistry &registry, Toolkit &kit);   // and
Status add_log_stream(ToolRegistry &registry, Toolkit &kit);  // with them

// add_all_tools adds every group. In safe mode only what helps a device that
// keeps crashing: status, reboot, upgrade, log and core dump.
Status add_all_tools(ToolRegistry &registry, Toolkit &kit, bool safe_mode);

// start_status_screen shows name, version and connection, from now on.
void start_status_screen(Toolkit &kit);

// restore_settings gives speaker, screen and theme what was set before the
// restart.
void restore_settings(const Machine &machine);

}  // namespace fleet
