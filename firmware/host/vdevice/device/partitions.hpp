// SPDX-License-Identifier: Apache-2.0
// Partition tables as ESP-IDF writes them: CSV with gaps that gen_esp32part
// fills, which is done here the same way.
#pragma once

#include "fleet/status.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace fleet::host {

struct PartitionTable {
    std::string json;  // as the boot poll has it
    std::uint32_t slot_size = 0;
};

Result<PartitionTable> parse_partitions(std::string_view csv);

}  // namespace fleet::host
