// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet/tool.hpp"

namespace fleet::esp {

// What a folder below boards/ defines. board_info says what the product is
// called; start_board brings up what only this board has, and enters it into
// the machine. A part that does not start is left out, with a line in the log.
BoardInfo board_info();
void start_board(Machine &machine);
// add_board_tools adds the tools that only this board has. Their functions run on
// the executor, so they must not wait: 20 ms at most.
Status add_board_tools(ToolRegistry &registry);
// board_button is the GPIO of a button that is low while pressed, or -1.
int board_button();

}  // namespace fleet::esp
