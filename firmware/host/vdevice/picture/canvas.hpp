// SPDX-License-Identifier: Apache-2.0
// A picture in memory, three bytes a dot, and what is drawn on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fleet::host {

struct Colour {
    std::uint8_t r, g, b;
};

struct Canvas {
    int width = 0, height = 0;
    std::vector<std::uint8_t> dots;

    Canvas() = default;
    Canvas(int w, int h) : width(w), height(h), dots(static_cast<std::size_t>(w) * static_cast<std::size_t>(h) * 3) {}

    std::uint8_t *at(int x, int y) {
        return &dots[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) * 3];
    }
    const std::uint8_t *at(int x, int y) const { return const_cast<Canvas *>(this)->at(x, y); }
    void set(int x, int y, Colour c);
    void fill(int x, int y, int w, int h, Colour c);
    // text breaks lines at the right edge and at '\n', and stops at the bottom;
    // it returns the y behind its last line.
    int text(int x, int y, int scale, std::string_view words, Colour c);
    // fit draws a picture as large as it goes, in the middle.
    void fit(const Canvas &picture);
};

}  // namespace fleet::host
