// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/lcd_display.hpp"

#include "frame.hpp"
#include "guard.hpp"
#include "jpeg.hpp"

#include "esp_heap_caps.h"
#include "esp_log.h"

#include <algorithm>
#include <cstring>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "display";

struct FreeHeap {
    void operator()(std::uint8_t *p) const { heap_caps_free(p); }
};
using FrameMemory = std::unique_ptr<std::uint8_t, FreeHeap>;

struct Palette {
    Colour paper, ink, bar, bar_ink;
};

constexpr Palette light = {colour(246, 247, 250), colour(24, 28, 36), colour(36, 92, 160), colour(255, 255, 255)};
constexpr Palette dark = {colour(18, 20, 26), colour(226, 230, 238), colour(44, 52, 70), colour(255, 255, 255)};

}  // namespace

LcdDisplay::LcdDisplay() = default;
LcdDisplay::~LcdDisplay() = default;

Status LcdDisplay::start(const PanelWiring &wiring, int backlight) {
    lock_ = xSemaphoreCreateMutex();
    const std::size_t size = static_cast<std::size_t>(wiring.width) * static_cast<std::size_t>(wiring.height) * 2;
    auto *dots = static_cast<std::uint8_t *>(heap_caps_malloc(size, MALLOC_CAP_SPIRAM));
    if (lock_ == nullptr || dots == nullptr) return {Code::no_memory, "no memory for the screen's frame"};
    frame_ = std::make_unique<Frame>(dots, wiring.width, wiring.height);
    Status status = panel_.start(wiring);
    if (status.ok()) status = backlight_.start(backlight, false, LEDC_CHANNEL_1);
    if (!status.ok()) return status;
    show_text("", "");  // the panel's memory holds noise: light only after the first frame
    return backlight_.set(brightness_);
}

Status LcdDisplay::push() {
    const Status status = panel_.draw(0, frame_->height(), frame_->dots());
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    return status;
}

void LcdDisplay::draw_text() {
    const Palette &p = dark_ ? dark : light;
    const int scale = std::max(1, frame_->width() / 160), bar = 12 * scale;
    frame_->fill(0, 0, frame_->width(), frame_->height(), p.paper);
    frame_->fill(0, 0, frame_->width(), bar, p.bar);
    frame_->text(2 * scale, 2 * scale, scale, title_, p.bar_ink);
    frame_->text(2 * scale, bar + 4 * scale, scale, text_, p.ink);
}

void LcdDisplay::show_text(std::string_view title, std::string_view text) {
    const Guard guard(lock_);
    title_ = title;
    text_ = text;
    draw_text();
    (void)push();
}

Status LcdDisplay::show_picture(Bytes jpeg) {
    return decode_jpeg(jpeg, [this](const Frame &picture) {
        const Guard guard(lock_);
        frame_->fill(0, 0, frame_->width(), frame_->height(), dark_ ? dark.paper : light.paper);
        frame_->fit(picture);
        (void)push();
    });
}

Status LcdDisplay::snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) {
    if (format != PictureFormat::jpeg) return {Code::unsupported, "this device makes JPEG pictures only"};
    // Encoding and sending take seconds, in which the executor wants to draw.
    const FrameMemory copy(
        static_cast<std::uint8_t *>(heap_caps_aligned_alloc(jpeg_input_alignment, frame_->bytes(), MALLOC_CAP_SPIRAM)));
    if (copy == nullptr) return {Code::no_memory, "no memory for a snapshot"};
    {
        const Guard guard(lock_);
        std::memcpy(copy.get(), frame_->dots(), frame_->bytes());
    }
    return encode_jpeg(Frame(copy.get(), frame_->width(), frame_->height()), quality, sink);
}

Status LcdDisplay::set_brightness(int percent) {
    if (percent < 0 || percent > 100) return {Code::invalid, "brightness goes from 0 to 100"};
    const Status status = backlight_.set(percent);
    if (status.ok()) brightness_ = percent;
    return status;
}

Status LcdDisplay::set_theme(std::string_view theme) {
    if (theme != "light" && theme != "dark") return {Code::invalid, "the themes are light and dark"};
    const Guard guard(lock_);
    dark_ = theme == "dark";
    draw_text();
    return push();
}

}  // namespace fleet::esp
