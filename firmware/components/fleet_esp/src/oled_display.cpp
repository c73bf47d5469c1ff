// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/oled_display.hpp"

#include "frame.hpp"
#include "guard.hpp"
#include "jpeg.hpp"

#include "fleet/font.hpp"

#include "esp_heap_caps.h"
#include "esp_log.h"

#include <memory>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "display";
constexpr int line_height = glyph_height + 2;
constexpr int title_height = glyph_height + 3;

struct FreeHeap {
    void operator()(std::uint8_t *p) const { heap_caps_free(p); }
};

// count_lines counts as Canvas::text breaks them.
int count_lines(std::string_view text, int columns) {
    int lines = 1, column = 0;
    for (const char c : text) {
        if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
        if (c == '\n' || column == columns) {
            ++lines;
            column = 0;
        }
        if (c != '\n') ++column;
    }
    return lines;
}

}  // namespace

Status OledDisplay::start(const OledWiring &wiring) {
    lock_ = xSemaphoreCreateMutex();
    if (lock_ == nullptr) return {Code::no_memory, "no memory for the screen"};
    Status status = panel_.start(wiring);
    if (status.ok()) status = push();  // its memory holds noise: light only after the first picture
    if (status.ok()) status = set_brightness(brightness_);
    return status;
}

Status OledDisplay::push() {
    const Status status = panel_.draw(dots_.data());
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
    return status;
}

void OledDisplay::show_text(std::string_view title, std::string_view text) {
    const Guard guard(lock_);
    MonoFrame frame(dots_.data(), width(), height());
    frame.fill(0, 0, width(), height(), black);
    const int lines = count_lines(text, width() / (glyph_width + 1));
    const bool room = title_height + lines * line_height <= height() || height() > 32;
    if (!title.empty() && room) {
        frame.fill(0, 0, width(), title_height - 1, white);
        frame.text(1, 1, 1, title.substr(0, title.find('\n')), black);
        frame.fill(0, title_height - 1, width(), height(), black);  // a long title's second line
    }
    frame.text(0, !title.empty() && room ? title_height : 0, 1, text, white);
    (void)push();
}

Status OledDisplay::show_picture(Bytes jpeg) {
    return decode_jpeg(jpeg, [this](const Frame &picture) {
        const Guard guard(lock_);
        MonoFrame frame(dots_.data(), width(), height());
        frame.fill(0, 0, width(), height(), black);
        frame.fit(picture);
        (void)push();
    });
}

Status OledDisplay::snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) {
    if (format != PictureFormat::jpeg) return {Code::unsupported, "this device makes JPEG pictures only"};
    const std::size_t size = static_cast<std::size_t>(width()) * static_cast<std::size_t>(height()) * 2;
    const std::unique_ptr<std::uint8_t, FreeHeap> copy(
        static_cast<std::uint8_t *>(heap_caps_aligned_alloc(jpeg_input_alignment, size, MALLOC_CAP_SPIRAM)));
    if (copy == nullptr) return {Code::no_memory, "no memory for a snapshot"};
    Frame picture(copy.get(), width(), height());
    {
        const Guard guard(lock_);
        const MonoFrame frame(dots_.data(), width(), height());
        for (int y = 0; y < height(); ++y) {
            for (int x = 0; x < width(); ++x)
                picture.set(x, y, frame.lit(x, y) ? white : black);
        }
    }
    return encode_jpeg(picture, quality, sink);
}

Status OledDisplay::set_brightness(int percent) {
    if (percent < 0 || percent > 100) return {Code::invalid, "brightness goes from 0 to 100"};
    const Guard guard(lock_);
    Status status = panel_.set_contrast(static_cast<std::uint8_t>(percent * 255 / 100));
    if (status.ok()) status = panel_.light(percent > 0);
    if (status.ok()) brightness_ = percent;
    return status;
}

}  // namespace fleet::esp
