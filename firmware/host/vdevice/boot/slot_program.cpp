// SPDX-License-Identifier: Apache-2.0
#include "boot/slot_program.hpp"

#include "ports/file_io.hpp"
#include "ports/posix_system.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <cstdlib>

namespace fleet::host {

namespace {

// A copy in memory: the slot's file has other bytes before and behind.
Result<Descriptor> copy_of_program(const std::string &state_dir, const Booted &booted) {
    const Descriptor slot{::open(slot_path(state_dir, booted.slot).c_str(), O_RDONLY | O_CLOEXEC)};
    Descriptor copy{::memfd_create("slot-program", MFD_CLOEXEC)};
    if (!slot.open() || !copy.open()) return disk_failure("the program in the slot cannot be read");
    off_t at = payload_offset;
    for (std::size_t left = booted.image.elf_size; left > 0;) {
        const ssize_t n = ::sendfile(copy.get(), slot.get(), &at, left);
        if (n <= 0) return disk_failure("the program in the slot cannot be read");
        left -= static_cast<std::size_t>(n);
    }
    return copy;
}

}  // namespace

bool started_from_slot() {
    return std::getenv(bootloader_variable) != nullptr;
}

Status run_slot_program(const std::string &state_dir, const Booted &booted) {
    const Result<Descriptor> program = copy_of_program(state_dir, booted);
    if (!program.ok()) return program.status();
    run_in_place(program.value().get());
    return {Code::corrupt, "the program in the slot does not start"};
}

}  // namespace fleet::host
