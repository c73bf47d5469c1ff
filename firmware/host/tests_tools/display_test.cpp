// SPDX-License-Identifier: Apache-2.0
#include "picture/codec.hpp"
#include "ports/canvas_display.hpp"
#include "temp_dir.hpp"

#include <doctest/doctest.h>
#include <cstdlib>

using namespace fleet;

namespace {

std::string snapshot(host::CanvasDisplay &display, PictureFormat format, int quality = 90) {
    std::string file;
    REQUIRE(
        display.snapshot(format, quality, [&](Bytes part) -> Status { return file += part.text(), Status{}; }).ok());
    return file;
}

host::Canvas decoded(const std::string &file) {
    auto canvas = host::decode_picture(Bytes{file});
    REQUIRE(canvas.ok());
    return canvas.value();
}

int inked(const host::Canvas &c) {  // dots that differ from the lower right corner
    int n = 0;
    const std::uint8_t *paper = c.at(c.width - 1, c.height - 1);
    for (int y = 0; y < c.height; ++y) {
        for (int x = 0; x < c.width; ++x)
            n += std::abs(c.at(x, y)[0] - paper[0]) > 60 ? 1 : 0;
    }
    return n;
}

}  // namespace

TEST_SUITE("display") {
    TEST_CASE("a snapshot is a picture of what was drawn") {
        host::CanvasDisplay display({320, 240, false, true, {}, ""});
        const int before = inked(decoded(snapshot(display, PictureFormat::png)));
        display.show_text("Activation", "482913");
        const host::Canvas png = decoded(snapshot(display, PictureFormat::png));
        const host::Canvas jpeg = decoded(snapshot(display, PictureFormat::jpeg));
        CHECK(png.width == 320);
        CHECK(jpeg.height == 240);
        CHECK(inked(png) != before);
        CHECK(std::abs(inked(png) - inked(jpeg)) < 200);
    }

    TEST_CASE("quality makes a difference in size") {
        host::CanvasDisplay display({320, 240, false, true, {}, ""});
        display.show_text("title", "some text that has edges in it");
        CHECK(snapshot(display, PictureFormat::jpeg, 10).size() < snapshot(display, PictureFormat::jpeg, 95).size());
    }

    TEST_CASE("theme and brightness show in the picture") {
        host::CanvasDisplay display({64, 64, false, true, {}, ""});
        const auto paper = [&] { return int{decoded(snapshot(display, PictureFormat::png)).at(63, 63)[0]}; };
        const int light = paper();
        REQUIRE(display.set_brightness(10).ok());
        CHECK(paper() < light);
        REQUIRE(display.set_theme("dark").ok());
        CHECK(paper() < 40);
        CHECK(display.set_theme("pink").code == Code::invalid);
        CHECK(display.set_brightness(101).code == Code::invalid);
        CHECK(display.theme() == "dark");
    }

    TEST_CASE("a picture is shown, and hostile ones are refused") {
        host::CanvasDisplay display({64, 48, false, false, {}, ""});
        host::Canvas red(200, 100);
        red.fill(0, 0, 200, 100, {250, 0, 0});
        const std::string jpeg = host::encode_jpeg(red, 90).value();
        REQUIRE(display.show_picture(Bytes{jpeg}).ok());
        CHECK(decoded(snapshot(display, PictureFormat::png)).at(32, 24)[0] > 200);

        CHECK_FALSE(display.show_picture(Bytes{"GIF89a"}).ok());
        CHECK_FALSE(display.show_picture(Bytes{}).ok());
        CHECK_FALSE(display.show_picture(Bytes{std::string_view(jpeg).substr(0, 40)}).ok());
        std::string huge = jpeg;  // the frame header says 65535 by 65535
        const std::size_t frame = huge.find("\xff\xc0");
        REQUIRE(frame != std::string::npos);
        for (std::size_t i = 5; i < 9; ++i)
            huge[frame + i] = '\xff';
        CHECK_FALSE(display.show_picture(Bytes{huge}).ok());
        CHECK(display.set_brightness(10).code == Code::unsupported);
    }

    TEST_CASE("text that is too long or not ASCII draws what fits") {
        test::TempDir dir;
        host::CanvasDisplay display({128, 64, true, false, {}, dir / "screen.ppm"});
        display.show_text(std::string(500, 'x'), "升级\n\n" + std::string(5000, 'y'));
        CHECK(display.theme().empty());
        CHECK(std::filesystem::file_size(dir / "screen.ppm") == 128 * 64 * 3 + 14);
    }
}
