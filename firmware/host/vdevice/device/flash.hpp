// SPDX-License-Identifier: Apache-2.0
// The unit's flash before its program runs: a directory, and an image in slot A
// when it is new.
#pragma once

#include "device/board.hpp"
#include "device/options.hpp"
#include "ports/file_io.hpp"

namespace fleet::host {

// prepare_flash makes what is missing, and locks the directory for this process.
Result<Descriptor> prepare_flash(const Options &options, const Board &board);

}  // namespace fleet::host
