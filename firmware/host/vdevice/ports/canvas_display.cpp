// SPDX-License-Identifier: Apache-2.0
#include "ports/canvas_display.hpp"

#include "picture/codec.hpp"

#include <algorithm>
#include <cstdio>

namespace fleet::host {

namespace {

using Guard = std::lock_guard<std::mutex>;

struct Palette {
    Colour paper, ink, bar, bar_ink;
};

Palette palette(bool monochrome, bool dark) {
    const Colour black{0, 0, 0}, white{255, 255, 255};
    if (monochrome) return {black, white, white, black};
    if (dark) return {{18, 20, 26}, {226, 230, 238}, {44, 52, 70}, white};
    return {{246, 247, 250}, {24, 28, 36}, {36, 92, 160}, white};
}

Colour dimmed(Colour c, int percent) {
    const auto dim = [percent](std::uint8_t v) {
        return static_cast<std::uint8_t>(v * (25 + percent * 75 / 100) / 100);
    };
    return {dim(c.r), dim(c.g), dim(c.b)};
}

}  // namespace

CanvasDisplay::CanvasDisplay(ScreenSettings settings)
    : settings_(std::move(settings)), canvas_(settings_.width, settings_.height) {
    draw();
}

void CanvasDisplay::draw() {
    Palette p = palette(settings_.monochrome, theme_ == "dark");
    if (settings_.backlight) {
        for (Colour *c : {&p.paper, &p.ink, &p.bar, &p.bar_ink})
            *c = dimmed(*c, brightness_);
    }
    const int scale = std::max(1, settings_.width / 160), bar = 12 * scale;
    canvas_.fill(0, 0, settings_.width, settings_.height, p.paper);
    canvas_.fill(0, 0, settings_.width, bar, p.bar);
    canvas_.text(2 * scale, 2 * scale, scale, title_, p.bar_ink);
    canvas_.text(2 * scale, bar + 4 * scale, scale, text_, p.ink);
    if (picture_.width > 0) canvas_.fit(picture_);
    mirror();
}

void CanvasDisplay::mirror() const {
    if (settings_.ppm_path.empty()) return;
    const std::string file = encode_ppm(canvas_);
    if (FILE *out = std::fopen(settings_.ppm_path.c_str(), "wb")) {
        std::fwrite(file.data(), 1, file.size(), out);
        std::fclose(out);
    }
}

Status CanvasDisplay::snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) {
    Canvas copy;
    {
        const Guard guard(mutex_);
        copy = canvas_;
    }
    const Result<std::string> file = format == PictureFormat::png ? encode_png(copy) : encode_jpeg(copy, quality);
    if (!file.ok()) return file.status();
    return sink(Bytes{file.value()});
}

Status CanvasDisplay::show_picture(Bytes file) {
    Result<Canvas> picture = decode_picture(file);
    if (!picture.ok()) return picture.status();
    const Guard guard(mutex_);
    picture_ = std::move(picture.value());
    draw();
    return {};
}

void CanvasDisplay::show_text(std::string_view title, std::string_view text) {
    if (settings_.on_text) settings_.on_text(title, text);
    const Guard guard(mutex_);
    title_ = std::string(title);
    text_ = std::string(text);
    picture_ = {};
    draw();
}

Status CanvasDisplay::set_brightness(int percent) {
    if (!settings_.backlight) return {Code::unsupported, "this board has no backlight"};
    if (percent < 0 || percent > 100) return {Code::invalid, "brightness goes from 0 to 100"};
    const Guard guard(mutex_);
    brightness_ = percent;
    draw();
    return {};
}

Result<int> CanvasDisplay::brightness() const {
    if (!settings_.backlight) return Status{Code::unsupported, "this board has no backlight"};
    const Guard guard(mutex_);
    return brightness_;
}

Status CanvasDisplay::set_theme(std::string_view theme) {
    if (settings_.monochrome) return {Code::unsupported, "a monochrome screen has no themes"};
    if (theme != "light" && theme != "dark") return {Code::invalid, "the themes are light and dark"};
    const Guard guard(mutex_);
    theme_ = std::string(theme);
    draw();
    return {};
}

std::string CanvasDisplay::theme() const {
    const Guard guard(mutex_);
    return settings_.monochrome ? "" : theme_;
}

}  // namespace fleet::host
