// SPDX-License-Identifier: Apache-2.0
#include "boot/bootloader.hpp"

#include "ports/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>

namespace fleet::host {

namespace {

bool may_boot(SlotState state) {
    return state != SlotState::invalid && state != SlotState::aborted;
}

// judge moves the states on as the bootloader does before it starts the slot:
// new gets its one boot; one that is pending already had it.
void judge(OtaData &data) {
    SlotState &state = data.states[data.boot_slot];
    if (state == SlotState::fresh) {
        state = SlotState::pending_verify;
    } else if (state == SlotState::pending_verify) {
        state = SlotState::aborted;
    }
    if (!may_boot(state)) data.boot_slot = 1 - data.boot_slot;
}

}  // namespace

Result<EspImage> read_slot(const std::string &state_dir, int slot, std::uint16_t chip_id) {
    const Descriptor file{::open(slot_path(state_dir, slot).c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat about{};
    if (!file.open() || ::fstat(file.get(), &about) != 0) return Status{Code::not_found, "the slot is empty"};
    return read_image(file.get(), static_cast<std::uint32_t>(about.st_size), chip_id);
}

Result<Booted> booted(const std::string &state_dir, std::uint16_t chip_id) {
    Booted done;
    done.data = load_ota_data(state_dir);
    done.slot = done.data.boot_slot;
    const Result<EspImage> image = read_slot(state_dir, done.slot, chip_id);
    if (!image.ok()) return image.status();
    done.image = image.value();
    return done;
}

Result<Booted> boot(const std::string &state_dir, std::uint16_t chip_id) {
    Booted booted;
    booted.data = load_ota_data(state_dir);
    OtaData &data = booted.data;
    judge(data);
    Result<EspImage> image = read_slot(state_dir, data.boot_slot, chip_id);
    if (!image.ok()) {  // damaged: the other slot, whatever its state
        data.states[data.boot_slot] = SlotState::undefined;
        data.boot_slot = 1 - data.boot_slot;
        image = read_slot(state_dir, data.boot_slot, chip_id);
    }
    if (!image.ok()) return image.status();
    ++data.boot_count;
    const Status saved = save_ota_data(state_dir, data);
    if (!saved.ok()) return saved;
    booted.slot = data.boot_slot;
    booted.image = image.value();
    return booted;
}

}  // namespace fleet::host
