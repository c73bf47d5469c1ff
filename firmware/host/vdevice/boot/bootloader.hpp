// SPDX-License-Identifier: Apache-2.0
// What ESP-IDF's bootloader does with CONFIG_BOOTLOADER_APP_ROLLBACK_ENABLE: a
// new image gets one boot to prove itself, and an image that is damaged none.
#pragma once

#include "boot/esp_image.hpp"
#include "boot/ota_data.hpp"

namespace fleet::host {

struct Booted {
    int slot = 0;
    EspImage image;
    OtaData data;
};

// boot chooses the slot, writes down that it did, and reads the image. It
// fails only when neither slot holds an image.
Result<Booted> boot(const std::string &state_dir, std::uint16_t chip_id);

// booted gives what boot did, to the program that was started out of a slot.
Result<Booted> booted(const std::string &state_dir, std::uint16_t chip_id);

Result<EspImage> read_slot(const std::string &state_dir, int slot, std::uint16_t chip_id);

}  // namespace fleet::host
