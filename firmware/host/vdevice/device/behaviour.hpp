// SPDX-License-Identifier: Apache-2.0
// What the image in the slot makes the unit do: the JSON that it carries
// replaces a program.
#pragma once

#include <cstdint>
#include <string>

namespace fleet::host {

struct Behaviour {
    bool selftest_fails = false;      // {"selftest":"fail"}
    std::int64_t crash_after_ms = 0;  // {"crash_after_ms":500}
    bool no_network = false;          // {"no_network":true}
    std::int64_t leak = 0;            // {"slow_heap_leak":1}: KiB a second
};

// What makes no sense counts as nothing.
Behaviour read_behaviour(const std::string &payload);

}  // namespace fleet::host
