// SPDX-License-Identifier: Apache-2.0
// Pictures in memory, and what is drawn on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet::esp {

using Colour = std::uint16_t;  // RGB565

constexpr Colour colour(unsigned r, unsigned g, unsigned b) {
    return static_cast<Colour>((r & 0xf8) << 8 | (g & 0xfc) << 3 | b >> 3);
}
constexpr Colour black = colour(0, 0, 0);
constexpr Colour white = colour(255, 255, 255);

class Frame;

// Canvas draws on dots of any kind.
class Canvas {
public:
    int width() const { return width_; }
    int height() const { return height_; }

    // set ignores what lies outside.
    virtual void set(int x, int y, Colour c) = 0;
    void fill(int x, int y, int w, int h, Colour c);
    // text breaks lines at the right edge and at '\n', and stops at the bottom.
    void text(int x, int y, int scale, std::string_view words, Colour c);
    // fit draws a picture as large as it goes, in the middle.
    void fit(const Frame &picture);

protected:
    Canvas(int width, int height) : width_(width), height_(height) {}
    ~Canvas() = default;
    bool inside(int x, int y) const { return x >= 0 && y >= 0 && x < width_ && y < height_; }

private:
    void glyph_at(int x, int y, int scale, char letter, Colour c);

    int width_, height_;
};

// Frame has the format of colour panels: RGB565 with the high byte first.
class Frame final : public Canvas {
public:
    Frame(std::uint8_t *dots, int width, int height) : Canvas(width, height), dots_(dots) {}

    const std::uint8_t *dots() const { return dots_; }
    std::size_t bytes() const { return static_cast<std::size_t>(width()) * static_cast<std::size_t>(height()) * 2; }

    void set(int x, int y, Colour c) override;
    Colour at(int x, int y) const;

private:
    std::size_t index(int x, int y) const {
        return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width()) + static_cast<std::size_t>(x)) * 2;
    }

    std::uint8_t *dots_;
};

// MonoFrame has the format of monochrome panels: pages of eight rows, a byte for each column, whose
// lowest bit is the upper row. Shades become patterns of dots.
class MonoFrame final : public Canvas {
public:
    MonoFrame(std::uint8_t *dots, int width, int height) : Canvas(width, height), dots_(dots) {}

    const std::uint8_t *dots() const { return dots_; }
    void set(int x, int y, Colour c) override;
    bool lit(int x, int y) const { return (dots_[index(x, y)] >> (y % 8) & 1) != 0; }

private:
    std::size_t index(int x, int y) const { return static_cast<std::size_t>(y / 8 * width() + x); }

    std::uint8_t *dots_;
};

}  // namespace fleet::esp
