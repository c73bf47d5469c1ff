// SPDX-License-Identifier: Apache-2.0
// The head of an ESP32 app image, looked at before anything is written.
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

constexpr std::size_t image_head_bytes = 288;  // header, first segment's header, app description

struct ImageHead {
    std::uint16_t chip = 0;
    std::uint8_t segments = 0;
    bool hash_appended = false;
    std::uint32_t secure_version = 0;
    std::string version;
    std::string project;
    std::string elf_sha256;  // hex
};

// parse_image_head reads the first image_head_bytes bytes.
Status parse_image_head(Bytes bytes, ImageHead &head);

struct ImageTarget {
    std::uint16_t chip = 0;
    std::uint32_t secure_version = 0;
    std::string_view project;
};

// check_target is wrong_target for an image that is not for this device.
Status check_target(const ImageHead &head, const ImageTarget &target);

}  // namespace fleet
