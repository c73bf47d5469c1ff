// SPDX-License-Identifier: Apache-2.0
// What a board is made of, from boards/NAME/board.json and its partition table.
#pragma once

#include "fleet/ports.hpp"

#include <string>

namespace fleet::host {

struct Screen {
    int width = 0, height = 0;
    bool monochrome = false, backlight = false;
};

struct Board {
    std::string name, type, chip;
    ChipInfo chip_info;      // its model points into `chip`
    std::string partitions;  // JSON, as the boot poll has it
    std::uint32_t slot_size = 0;
    std::uint32_t heap_size = 0;
    Screen screen;  // 0 by 0: none
    bool speaker = false, led = false, camera = false, battery = false;
};

// load_board fills the board that the caller keeps; it must not move after.
Status load_board(const std::string &name, Board &board);

}  // namespace fleet::host
