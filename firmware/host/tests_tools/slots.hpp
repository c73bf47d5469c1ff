// SPDX-License-Identifier: Apache-2.0
// A unit's flash for tests: two slots with images of the real layout.
#pragma once

#include "mkimage/image_writer.hpp"
#include "ports/slot_updater.hpp"
#include "temp_dir.hpp"

namespace fleet::test {

constexpr std::uint16_t chip_s3 = 9;
constexpr std::uint32_t slot_size = 256 * 1024;

std::string image_of(const std::string &version, std::uint32_t size = 40000);
void put_file(const std::string &path, const std::string &content);

// Flash is a state directory whose slot A holds version 1.0.0.
struct Flash {
    TempDir dir;
    Flash();
    host::Booted boot() const;
    host::SlotUpdater updater(const host::Booted &booted) const;
};

// install takes an image all the way to "boots next time".
Status install(host::SlotUpdater &updater, const std::string &image);

}  // namespace fleet::test
