// SPDX-License-Identifier: Apache-2.0
#include "picture/canvas.hpp"

#include "fleet/font.hpp"

#include <algorithm>

namespace fleet::host {

void Canvas::set(int x, int y, Colour c) {
    if (x < 0 || y < 0 || x >= width || y >= height) return;
    std::uint8_t *dot = at(x, y);
    dot[0] = c.r;
    dot[1] = c.g;
    dot[2] = c.b;
}

void Canvas::fill(int x, int y, int w, int h, Colour c) {
    for (int row = y; row < y + h; ++row) {
        for (int column = x; column < x + w; ++column)
            set(column, row, c);
    }
}

namespace {

void draw_glyph(Canvas &canvas, int x, int y, int scale, const std::uint8_t *columns, Colour c) {
    for (int column = 0; column < glyph_width; ++column) {
        for (int row = 0; row < glyph_height; ++row) {
            if ((columns[column] >> row & 1) != 0) canvas.fill(x + column * scale, y + row * scale, scale, scale, c);
        }
    }
}

bool is_continuation(char c) {
    return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

int Canvas::text(int x, int y, int scale, std::string_view words, Colour c) {
    const int advance = (glyph_width + 1) * scale, line = (glyph_height + 2) * scale;
    int at_x = x;
    for (const char letter : words) {
        if (is_continuation(letter)) continue;  // one box per character of UTF-8
        if (letter == '\n' || at_x + advance > width) {
            at_x = x;
            y += line;
            if (letter == '\n') continue;
        }
        if (y + glyph_height * scale > height) return y;
        draw_glyph(*this, at_x, y, scale, glyph(letter), c);
        at_x += advance;
    }
    return y + line;
}

void Canvas::fit(const Canvas &picture) {
    if (picture.width <= 0 || picture.height <= 0) return;
    int w = width, h = picture.height * width / picture.width;
    if (h > height) {
        h = height;
        w = picture.width * height / picture.height;
    }
    w = std::max(w, 1);
    h = std::max(h, 1);
    for (int y = 0; y < h; ++y) {
        for (int x = 0; x < w; ++x) {
            const std::uint8_t *dot = picture.at(x * picture.width / w, y * picture.height / h);
            set((width - w) / 2 + x, (height - h) / 2 + y, {dot[0], dot[1], dot[2]});
        }
    }
}

}  // namespace fleet::host
