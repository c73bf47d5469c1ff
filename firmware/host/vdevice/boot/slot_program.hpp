// SPDX-License-Identifier: Apache-2.0
// Programs in slots: an image may carry an ELF file for this machine, which
// then runs in place of the one that booted it.
#pragma once

#include "boot/bootloader.hpp"

namespace fleet::host {

// started_from_slot reports whether this process is such a program: the slot is
// chosen already.
bool started_from_slot();

// run_slot_program puts the program of the slot in place of this one, with the
// same arguments. It returns only when that fails.
Status run_slot_program(const std::string &state_dir, const Booted &booted);

}  // namespace fleet::host
