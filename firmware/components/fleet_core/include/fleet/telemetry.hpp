// SPDX-License-Identifier: Apache-2.0
// The heartbeat: what a device reports of itself, unasked.
#pragma once

#include "fleet/json_writer.hpp"
#include "fleet/ports.hpp"

#include <cstdint>

namespace fleet {

constexpr char telemetry_method[] = "notifications/telemetry";

// Vitals are what the machine does not know of itself.
struct Vitals {
    std::int64_t boots = 0;
    std::int64_t crashes = 0;  // in a row
    bool safe_mode = false;
    std::uint32_t queued = 0;   // messages in the outbox
    std::uint32_t dropped = 0;  // since the start
    std::uint32_t reconnects = 0;
    std::int64_t config_version = 0;
    bool birth = false;  // the first since connecting
};

// write_telemetry writes the members of the notification's params. Units are in
// the names; what a board does not know is left out.
void write_telemetry(JsonWriter &w, const Machine &machine, const Vitals &vitals);

// write_brief writes the few of them that a chart needs later: what happened
// while there was no connection.
void write_brief(JsonWriter &w, const Machine &machine, const Vitals &vitals);

}  // namespace fleet
