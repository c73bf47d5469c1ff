// SPDX-License-Identifier: Apache-2.0
// The layout of an ESP32 application image, and the checks that esp_ota_end
// and the bootloader make: magic, chip, segments, checksum, appended SHA-256.
#pragma once

#include "fleet/ports.hpp"

#include <string>

namespace fleet::host {

constexpr std::uint32_t image_header_size = 24;
constexpr std::uint32_t segment_header_size = 8;
constexpr std::uint32_t descriptor_offset = image_header_size + segment_header_size;
constexpr std::uint32_t descriptor_size = 256;
constexpr std::uint32_t payload_offset = descriptor_offset + descriptor_size;

struct EspImage {
    AppInfo app;
    std::uint16_t chip_id = 0;
    std::uint32_t length = 0;    // header to checksum or hash
    std::string payload;         // JSON behind the description; "" without one
    std::uint32_t elf_size = 0;  // of a program for this machine at payload_offset; 0 without one
};

// read_image checks the image in the first `size` bytes of a file.
Result<EspImage> read_image(int fd, std::uint32_t size, std::uint16_t chip_id);

}  // namespace fleet::host
