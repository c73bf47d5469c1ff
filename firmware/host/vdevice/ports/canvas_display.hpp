// SPDX-License-Identifier: Apache-2.0
// The Display in memory: tools and status draw on it, a snapshot is its file.
#pragma once

#include "fleet/ports.hpp"
#include "picture/canvas.hpp"

#include <mutex>

namespace fleet::host {

struct ScreenSettings {
    int width = 0, height = 0;
    bool monochrome = false;
    bool backlight = true;
    std::function<void(std::string_view title, std::string_view text)> on_text;  // what is shown, as text
    std::string ppm_path;  // where the picture is mirrored; "" for nowhere
};

class CanvasDisplay final : public Display {
public:
    explicit CanvasDisplay(ScreenSettings settings);
    int width() const override { return settings_.width; }
    int height() const override { return settings_.height; }
    bool monochrome() const override { return settings_.monochrome; }
    Status snapshot(PictureFormat format, int quality, FunctionRef<Status(Bytes)> sink) override;
    Status show_picture(Bytes file) override;
    void show_text(std::string_view title, std::string_view text) override;
    Status set_brightness(int percent) override;
    Result<int> brightness() const override;
    Status set_theme(std::string_view theme) override;
    std::string theme() const override;

private:
    void draw();
    void mirror() const;

    ScreenSettings settings_;
    mutable std::mutex mutex_;  // the worker takes snapshots while the executor draws
    Canvas canvas_, picture_;
    std::string title_, text_, theme_ = "light";
    int brightness_ = 75;
};

}  // namespace fleet::host
