// SPDX-License-Identifier: Apache-2.0
// otadata.json: which slot boots, the state of each, and how often was booted.
#pragma once

#include "fleet/ports.hpp"

#include <string>

namespace fleet::host {

struct OtaData {
    int boot_slot = 0;
    SlotState states[2] = {SlotState::valid, SlotState::undefined};
    std::int64_t boot_count = 0;
};

const char *slot_label(int slot);  // "ota_0"
std::string slot_path(const std::string &state_dir, int slot);

// load gives a fresh unit's data if there is no file, or a damaged one: the
// bootloader then tries slot A, and B.
OtaData load_ota_data(const std::string &state_dir);
Status save_ota_data(const std::string &state_dir, const OtaData &data);

}  // namespace fleet::host
