// SPDX-License-Identifier: Apache-2.0
// A picture in the panel's own format, RGB565 with the high byte first, and
// what is drawn on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet::esp {

using Colour = std::uint16_t;

constexpr Colour colour(unsigned r, unsigned g, unsigned b) {
    return static_cast<Colour>((r & 0xf8) << 8 | (g & 0xfc) << 3 | b >> 3);
}

class Frame {
public:
    Frame() = default;
    Frame(std::uint8_t *dots, int width, int height) : dots_(dots), width_(width), height_(height) {}

    int width() const { return width_; }
    int height() const { return height_; }
    const std::uint8_t *dots() const { return dots_; }
    std::size_t bytes() const { return static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_) * 2; }

    void set(int x, int y, Colour c);
    Colour at(int x, int y) const;
    void fill(int x, int y, int w, int h, Colour c);
    // text breaks lines at the right edge and at '\n', and stops at the bottom.
    void text(int x, int y, int scale, std::string_view words, Colour c);
    // fit draws a picture as large as it goes, in the middle.
    void fit(const Frame &picture);

private:
    std::size_t index(int x, int y) const {
        return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x)) * 2;
    }
    void glyph_at(int x, int y, int scale, char letter, Colour c);

    std::uint8_t *dots_ = nullptr;
    int width_ = 0, height_ = 0;
};

}  // namespace fleet::esp
