// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/buzzer.hpp"
#include "fleet_esp/lamps.hpp"
#include "fleet_esp/lcd_display.hpp"
#include "fleet_esp/reset_button.hpp"

namespace lights = fake::lights;
namespace screen = fake::screen;

namespace {

constexpr int backlight_channel = 1, buzzer_channel = 2;

struct Screen {
    Screen() {
        fake::reset();
        REQUIRE(display.start({}, 14).ok());
        blocks = fake::heap::blocks.size();
    }
    ~Screen() {
        CHECK(screen::live_codecs == 0);
        CHECK(fake::heap::blocks.size() == blocks);
    }
    unsigned at(int x, int y) const {
        const std::size_t i = (static_cast<std::size_t>(y) * 320 + static_cast<std::size_t>(x)) * 2;
        return static_cast<unsigned>(screen::dots[i] << 8 | screen::dots[i + 1]);
    }
    std::size_t dots_of(unsigned colour) const {
        std::size_t n = 0;
        for (int y = 0; y < 240; ++y) {
            for (int x = 0; x < 320; ++x)
                n += at(x, y) == colour;
        }
        return n;
    }
    fleet::esp::LcdDisplay display;
    std::size_t blocks = 0;
};

constexpr unsigned light_paper = 0xf7bf, light_ink = 0x18e4, dark_paper = 0x10a3;

}  // namespace

TEST_SUITE_BEGIN("parts");

TEST_CASE("lamps") {
    fake::reset();
    fleet::esp::PlainLamp plain;
    REQUIRE(plain.start(2, false).ok());
    REQUIRE(plain.set_rgb(0, 255, 10).ok());
    CHECK(lights::duty[0] == 1023);
    REQUIRE(plain.set_rgb(0, 0, 0).ok());
    CHECK(lights::duty[0] == 0);
    fleet::esp::RgbLamp rgb;
    CHECK(name_of(rgb.set_rgb(1, 2, 3)) == "unavailable");
    REQUIRE(rgb.start(48).ok());
    REQUIRE(rgb.set_rgb(1, 2, 3).ok());
    CHECK(lights::rgb == 0x010203);
    lights::result = ESP_ERR_INVALID_ARG;
    CHECK(name_of(plain.start(99, false)) == "invalid");
}

TEST_CASE("the buzzer beeps its new volume, shortly") {
    Bench b;
    fleet::esp::Buzzer buzzer(b.executor);
    CHECK(name_of(buzzer.set_volume(50)) == "unavailable");
    REQUIRE(buzzer.start(15).ok());
    CHECK(name_of(buzzer.set_volume(101)) == "invalid");
    REQUIRE(buzzer.set_volume(50).ok());
    CHECK(lights::duty[buzzer_channel] == 128);
    CHECK(buzzer.volume() == 50);
    b.run(100);
    CHECK(lights::duty[buzzer_channel] == 0);
}

TEST_CASE("text is drawn, in the theme's colours") {
    Screen s;
    s.display.show_text("Title", "Hello\nworld");
    CHECK(s.at(319, 239) == light_paper);
    const std::size_t ink = s.dots_of(light_ink);
    CHECK(ink > 100);
    s.display.show_text("Title", "Hello\nworld, and more");
    CHECK(s.dots_of(light_ink) > ink);
    REQUIRE(s.display.set_theme("dark").ok());
    CHECK(s.display.theme() == "dark");
    CHECK(s.at(319, 239) == dark_paper);
    CHECK(name_of(s.display.set_theme("pink")) == "invalid");
    CHECK(s.display.theme() == "dark");
}

TEST_CASE("text longer than the screen ends at its edge") {
    Screen s;
    s.display.show_text(std::string(500, 'W'), std::string(20000, 'W'));
    s.display.show_text("\xe5\x8d\x87\xe7\xba\xa7", "\xff\xfe\x01");
    CHECK(screen::dots.size() == 320 * 240 * 2);
}

TEST_CASE("the backlight follows the eye") {
    Screen s;
    CHECK(s.display.brightness().value() == 75);
    REQUIRE(s.display.set_brightness(50).ok());
    CHECK(lights::duty[backlight_channel] == 255);
    CHECK(name_of(s.display.set_brightness(-1)) == "invalid");
    CHECK(s.display.brightness().value() == 50);
}

TEST_CASE("a picture is shown in the middle, as large as it goes") {
    Screen s;
    screen::jpeg_width = 100;
    screen::jpeg_height = 100;
    REQUIRE(s.display.show_picture(fleet::Bytes("\x11")).ok());
    CHECK(s.at(160, 120) == 0x1111);
    CHECK(s.at(40, 0) == 0x1111);
    CHECK(s.at(39, 0) == light_paper);
    CHECK(s.at(280, 120) == light_paper);
}

TEST_CASE("pictures that are none, or too large") {
    Screen s;
    screen::jpeg_width = 2000;
    screen::jpeg_height = 2000;
    CHECK(name_of(s.display.show_picture(fleet::Bytes("x"))) == "no_memory");
    screen::jpeg_width = 0;
    CHECK(name_of(s.display.show_picture(fleet::Bytes("x"))) == "corrupt");
    screen::bad_jpeg = true;
    CHECK(name_of(s.display.show_picture(fleet::Bytes("x"))) == "corrupt");
}

TEST_CASE("a snapshot is a JPEG of what is shown") {
    Screen s;
    std::string file;
    const auto sink = [&](fleet::Bytes b) {
        file.append(b.text());
        return fleet::Status{};
    };
    REQUIRE(s.display.snapshot(fleet::PictureFormat::jpeg, 80, sink).ok());
    CHECK(file[0] == 80);
    CHECK(static_cast<unsigned char>(file[1]) == screen::dots[0]);
    CHECK(name_of(s.display.snapshot(fleet::PictureFormat::png, 80, sink)) == "unsupported");
    screen::bad_jpeg = true;
    CHECK(name_of(s.display.snapshot(fleet::PictureFormat::jpeg, 80, sink)) == "no_memory");
}

TEST_CASE("a panel that hangs does not stop the device") {
    Screen s;
    screen::hangs = true;
    s.display.show_text("a", "b");
    CHECK(name_of(s.display.set_theme("dark")) == "timeout");
}

TEST_CASE("a panel that is not there is a failure") {
    fake::reset();
    screen::result = ESP_FAIL;
    fleet::esp::LcdDisplay none;
    CHECK_FALSE(none.start({}, 14).ok());
}

TEST_CASE("a button counts when it was held and then pressed for a moment, and once") {
    Bench b;
    fleet::esp::ResetButton button(b.executor);
    int held = 0;
    REQUIRE(button.start(0, [&] { ++held; }).ok());
    const auto press = [&](std::uint32_t down_ms, std::uint32_t up_ms) {
        fake::chip::pins[0] = 0;
        b.run(down_ms);
        fake::chip::pins[0] = 1;
        b.run(up_ms);
    };
    press(4500, 1000);
    press(300, 1000);
    CHECK(held == 0);  // too short
    press(3'600'000, 6000);
    press(300, 1000);
    CHECK(held == 0);  // a serial terminal, and somebody who plays much later
    press(6000, 1000);
    press(20'000, 6000);
    press(300, 1000);
    CHECK(held == 0);  // a terminal that was closed and opened again
    press(6000, 1000);
    press(300, 1000);
    CHECK(held == 1);
    press(300, 1000);
    CHECK(held == 1);
}
