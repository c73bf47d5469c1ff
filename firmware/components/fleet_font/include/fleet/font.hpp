// SPDX-License-Identifier: Apache-2.0
// A font of five by eight dots. A glyph has five columns; the lowest bit is
// the top dot. What the font lacks shows as a box.
#pragma once

#include <cstdint>

namespace fleet {

constexpr int glyph_width = 5;
constexpr int glyph_height = 8;

const std::uint8_t *glyph(char c);

}  // namespace fleet
