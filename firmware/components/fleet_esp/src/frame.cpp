// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include "fleet/font.hpp"

#include <algorithm>

namespace fleet::esp {

void Frame::set(int x, int y, Colour c) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
    dots_[index(x, y)] = static_cast<std::uint8_t>(c >> 8);
    dots_[index(x, y) + 1] = static_cast<std::uint8_t>(c);
}

Colour Frame::at(int x, int y) const {
    return static_cast<Colour>(dots_[index(x, y)] << 8 | dots_[index(x, y) + 1]);
}

void Frame::fill(int x, int y, int w, int h, Colour c) {
    for (int row = y; row < y + h; ++row) {
        for (int column = x; column < x + w; ++column)
            set(column, row, c);
    }
}

void Frame::glyph_at(int x, int y, int scale, char letter, Colour c) {
    const std::uint8_t *columns = glyph(letter);
    for (int column = 0; column < glyph_width; ++column) {
        for (int row = 0; row < glyph_height; ++row) {
            if ((columns[column] >> row & 1) != 0) fill(x + column * scale, y + row * scale, scale, scale, c);
        }
    }
}

void Frame::text(int x, int y, int scale, std::string_view words, Colour c) {
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

void Frame::fit(const Frame &picture) {
    if (picture.width_ <= 0 || picture.height_ <= 0) return;
    int w = width_, h = picture.height_ * width_ / picture.width_;
    if (h > height_) {
        h = height_;
        w = picture.width_ * height_ / picture.height_;
    }
    w = std::max(w, 1);
    h = std::max(h, 1);
    for (int y = 0; y < h; ++y) {
        for (int x = 0; x < w; ++x) {
            set((width_ - w) / 2 + x, (height_ - h) / 2 + y,
                picture.at(x * picture.width_ / w, y * picture.height_ / h));
        }
    }
}

}  // namespace fleet::esp
