// SPDX-License-Identifier: Apache-2.0
// JPEG by Espressif's esp_new_jpeg.
#pragma once

#include "fleet/hook.hpp"
#include "fleet/span.hpp"
#include "fleet/status.hpp"
#include "frame.hpp"

#include <cstddef>

namespace fleet::esp {

// On the ESP32-S3 the encoder refuses dots that are not aligned to this.
constexpr std::size_t jpeg_input_alignment = 16;

Status encode_jpeg(const Frame &frame, int quality, FunctionRef<Status(Bytes)> sink);

// decode_jpeg gives the picture to use, and frees it afterwards.
Status decode_jpeg(Bytes file, FunctionRef<void(const Frame &)> use);

}  // namespace fleet::esp
