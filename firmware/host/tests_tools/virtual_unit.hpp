// SPDX-License-Identifier: Apache-2.0
// A virtual device as a process: how it is started, and its flash seen from
// outside.
#pragma once

#include "slots.hpp"
#include "stub_fleet.hpp"

#include <string>
#include <vector>

namespace fleet::test {

// image_with is version 1.1.0 with a payload.
std::string image_with(const std::string &payload, std::uint32_t size = 150000);

std::vector<std::string> command(const StubFleet &fleet, const std::string &state_dir,
                                 const std::vector<std::string> &more = {});

// next_program is the virtual device's next edition, as an executable file.
extern const char next_program[];

struct Seen {
    std::string version;
    SlotState state, other;
};
Seen look(const std::string &state_dir);

bool settled_on_new(const std::string &state_dir);  // 1.1.0, and for good
bool went_back(const std::string &state_dir, SlotState verdict);

}  // namespace fleet::test
