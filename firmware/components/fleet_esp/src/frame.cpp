// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include "fleet/font.hpp"

#include <algorithm>

namespace fleet::esp {

void Frame::set(int x, int y, Colour c) {
    if (!inside(x, y)) return;
    dots_[index(x, y)] = static_cast<std::uint8_t>(c >> 8);
    dots_[index(x, y) + 1] = static_cast<std::uint8_t>(c);
}

Colour Frame::at(int x, int y) const {
    return static_cast<Colour>(dots_[index(x, y)] << 8 | dots_[index(x, y) + 1]);
}

// Ordered dithering: a dot is lit if it is brighter than its place in the pattern.
void MonoFrame::set(int x, int y, Colour c) {
    constexpr int pattern[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
    if (!inside(x, y)) return;
    const int red = c >> 11, green = c >> 5 & 63, blue = c & 31;
    const int brightness = (red * 2 * 3 + green * 6 + blue * 2) * 16 / (62 * 3 + 63 * 6 + 62);  // 0 to 16
    const auto bit = static_cast<std::uint8_t>(1u << (y % 8));
    std::uint8_t &byte = dots_[index(x, y)];
    byte = static_cast<std::uint8_t>(brightness > pattern[y % 4][x % 4] ? byte | bit : byte & ~bit);
}

void Canvas::fill(int x, int y, int w, int h, Colour c) {
    for (int row = y; row < y + h; ++row) {
        for (int column = x; column < x + w; ++column)
            set(column, row, c);
    }
}

void Canvas::glyph_at(int x, int y, int scale, char letter, Colour c) {
    const std::uint8_t *columns = glyph(letter);
    for (int column = 0; column < glyph_width; ++column) {
        for (int row = 0; row < glyph_height; ++row) {
            if ((columns[column] >> row & 1) != 0) fill(x + column * scale, y + row * scale, scale, scale, c);
        }
    }
}

void Canvas::text(int x, int y, int scale, std::string_view words, Colour c) {
    const int advance = (glyph_width + 1) * scale, line = (glyph_height + 2) * scale;
    int at_x = x;
    for (const char letter : words) {
        if ((static_cast<unsigned char>(letter) & 0xC0) == 0x80) continue;  // one box per character of UTF-8
        if (letter == '\n' || at_x + advance > width_) {
            at_x = x;
            y += line;
        }
        if (letter == '\n') continue;
        if (y + glyph_height * scale > height_) return;
        glyph_at(at_x, y, scale, letter, c);
        at_x += advance;
    }
}

void Canvas::fit(const Frame &picture) {
    if (picture.width() <= 0 || picture.height() <= 0) return;
    int w = width_, h = picture.height() * width_ / picture.width();
    if (h > height_) {
        h = height_;
        w = picture.width() * height_ / picture.height();
    }
    w = std::max(w, 1);
    h = std::max(h, 1);
    for (int y = 0; y < h; ++y) {
        for (int x = 0; x < w; ++x) {
            set((width_ - w) / 2 + x, (height_ - h) / 2 + y,
                picture.at(x * picture.width() / w, y * picture.height() / h));
        }
    }
}

}  // namespace fleet::esp
