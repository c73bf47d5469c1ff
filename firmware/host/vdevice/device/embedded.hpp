// SPDX-License-Identifier: Apache-2.0
// Files of the firmware that the program carries along; CMake fills them in.
#pragma once

#include <string>

namespace fleet::host {

const char *embedded_board(const std::string &name);       // board.json, or null
const char *embedded_partitions(const std::string &name);  // "4mb.csv", or null

}  // namespace fleet::host
