// SPDX-License-Identifier: Apache-2.0
// Makes application images as esptool's elf2image does: header, one segment
// with description and payload, checksum, SHA-256. What runs inside is a JSON
// text that a virtual device obeys.
#pragma once

#include <cstdint>
#include <string>

namespace fleet::host {

struct ImageSpec {
    std::uint16_t chip_id = 0;
    std::string project = "fleet_unit";
    std::string version = "1.0.0";
    std::string idf_version = "v5.5.5";
    std::string date = "Nov 20 2026", time = "09:00:00";
    std::string payload;  // JSON, or ""
    std::uint32_t secure_version = 0;
    std::uint32_t size = 0;  // filled up to about this many bytes
};

// The build's hash (app_elf_sha256) is that of the spec: the same spec is the
// same build.
std::string make_image(const ImageSpec &spec);

}  // namespace fleet::host
