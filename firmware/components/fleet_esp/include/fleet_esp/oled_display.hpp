// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/ssd1306_panel.hpp"

#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"

#include <array>
#include <string>

namespace fleet::esp {

// OledDisplay is a small monochrome screen. Its font has ASCII only. Pictures become patterns of
// dots; a snapshot is a JPEG, whose encoder needs PSRAM. It has no themes: brightness is the
// panel's contrast, and 0 switches it off.
class OledDisplay final : public Display {
public:
    Status start(const OledWiring &wiring);

    int width() const override { return panel_.width(); }
    int height() const override { return panel_.height(); }
    bool monochrome() const override { return true; }
    Status snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) override;
    Status show_picture(Bytes jpeg) override;
    // show_text leaves the title out where the text would not fit beneath it.
    void show_text(std::string_view title, std::string_view text) override;
    Status set_brightness(int percent) override;
    Result<int> brightness() const override { return brightness_; }
    Status set_theme(std::string_view) override { return {Code::unsupported, "this screen has no themes"}; }
    std::string theme() const override { return {}; }

private:
    Status push();

    Ssd1306Panel panel_;
    SemaphoreHandle_t lock_ = nullptr;  // the worker reads the dots that the executor draws
    std::array<std::uint8_t, Ssd1306Panel::max_width * Ssd1306Panel::max_pages> dots_ = {};
    int brightness_ = 50;
};

}  // namespace fleet::esp
