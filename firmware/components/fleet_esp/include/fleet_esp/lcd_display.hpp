// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/pwm_light.hpp"
#include "fleet_esp/st7789_panel.hpp"

#include <memory>

namespace fleet::esp {

class Frame;

// LcdDisplay draws into a frame in PSRAM, which snapshots read, and sends it to
// the panel. Its font has ASCII only.
class LcdDisplay final : public Display {
public:
    LcdDisplay();
    ~LcdDisplay() override;

    Status start(const PanelWiring &wiring, int backlight);

    int width() const override { return panel_.width(); }
    int height() const override { return panel_.height(); }
    bool monochrome() const override { return false; }
    Status snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) override;
    Status show_picture(Bytes jpeg) override;
    void show_text(std::string_view title, std::string_view text) override;
    Status set_brightness(int percent) override;
    Result<int> brightness() const override { return brightness_; }
    Status set_theme(std::string_view theme) override;
    std::string theme() const override { return dark_ ? "dark" : "light"; }

private:
    void draw_text();
    Status push();

    St7789Panel panel_;
    PwmLight backlight_;
    SemaphoreHandle_t lock_ = nullptr;  // the worker reads the frame that the executor draws
    std::unique_ptr<Frame> frame_;
    std::string title_, text_;
    int brightness_ = 75;
    bool dark_ = false;
};

}  // namespace fleet::esp
