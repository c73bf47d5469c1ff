// SPDX-License-Identifier: Apache-2.0
// The small monochrome screen, seen from its I2C bus.
#include "support.hpp"

#include "fleet_esp/oled_display.hpp"

namespace i2c = fake::i2c;
namespace screen = fake::screen;

namespace {

// Panel reads what was written to the bus as the controller does.
struct Panel {
    explicit Panel(int rows = 64) {
        fake::reset();
        fleet::esp::OledWiring wiring;
        wiring.height = rows;
        started = display.start(wiring);
        look();
    }
    // look gives the number of pages that were sent since.
    int look() {
        int pages = 0;
        for (const std::string &bytes : i2c::written) {
            if (bytes[0] == 0x40) {
                REQUIRE(bytes.size() == 129);
                REQUIRE(page < 8);
                bytes.copy(&memory[page * 128], 128, 1);
                ++pages;
                continue;
            }
            REQUIRE(bytes[0] == 0);
            for (std::size_t i = 1; i < bytes.size(); ++i) {
                const auto c = static_cast<unsigned char>(bytes[i]);
                if (c == 0x22) page = static_cast<std::size_t>(bytes[i + 1]);
                if (c == 0xae || c == 0xaf) lit = c == 0xaf;
                if (c == 0x81) contrast = static_cast<unsigned char>(bytes[i + 1]);
                if (c == 0xa8) multiplex = static_cast<unsigned char>(bytes[i + 1]);
                if (c == 0xda) wired = static_cast<unsigned char>(bytes[i + 1]);
                // The parameters.
                if (c == 0x21 || c == 0x22) i += 2;
                if (c == 0x81 || c == 0xa8 || c == 0xda || c == 0xd5 || c == 0xd3 || c == 0x8d || c == 0x20 ||
                    c == 0xd9 || c == 0xdb)
                    ++i;
            }
        }
        i2c::written.clear();
        return pages;
    }
    bool dot(int x, int y) const {
        return (static_cast<unsigned char>(memory[static_cast<std::size_t>(y / 8 * 128 + x)]) >> (y % 8) & 1) != 0;
    }
    int dots(int from_row, int to_row) const {
        int n = 0;
        for (int y = from_row; y < to_row; ++y) {
            for (int x = 0; x < 128; ++x)
                n += dot(x, y);
        }
        return n;
    }

    fleet::esp::OledDisplay display;
    fleet::Status started;
    std::string memory = std::string(1024, '\x55');
    std::size_t page = 99;
    bool lit = false;
    int contrast = 0, multiplex = 0, wired = 0;
};

}  // namespace

TEST_SUITE_BEGIN("oled");

TEST_CASE("it is set up for its height, and lit once its memory is clean") {
    Panel p;
    REQUIRE(p.started.ok());
    CHECK(i2c::address == 0x3c);
    CHECK(p.multiplex == 63);
    CHECK(p.wired == 0x12);
    CHECK(p.lit);
    CHECK(p.contrast == 127);
    CHECK(p.dots(0, 64) == 0);
    Panel flat(32);
    REQUIRE(flat.started.ok());
    CHECK(flat.multiplex == 31);
    CHECK(flat.wired == 0x02);
    CHECK(flat.display.height() == 32);
    CHECK(flat.memory.substr(512) == std::string(512, '\x55'));  // it has four pages
    CHECK(name_of(Panel(48).started) == "invalid");
}

TEST_CASE("text has an inverted title, and pages that did not change are not sent again") {
    Panel p;
    p.display.show_text("Title", "one\ntwo");
    CHECK(p.look() == 4);  // of eight: the title and two lines
    CHECK(p.dot(127, 0));
    CHECK_FALSE(p.dot(127, 12));
    CHECK(p.dots(0, 9) > 800);
    const int ink = p.dots(10, 64);
    CHECK(ink > 20);
    p.display.show_text("Title", "one\ntwo");
    CHECK(p.look() == 0);
    p.display.show_text("Title", "one\ntwo and more");
    CHECK(p.look() <= 2);
    CHECK(p.dots(10, 64) > ink);
    p.display.show_text("", "one");
    p.look();
    CHECK_FALSE(p.dot(127, 0));
    CHECK(p.dots(0, 9) > 5);
    p.display.show_text(std::string(500, 'W'), std::string(20'000, 'W'));
    p.display.show_text("\xe5\x8d\x87\xe7\xba\xa7\n", "\xff\xfe\x01");
    p.look();
    CHECK(p.memory.size() == 1024);
}

TEST_CASE("a flat screen shows the text without its title where both do not fit") {
    Panel p(32);
    p.display.show_text("Wi-Fi setup", "FLEET-112233\ncode AB23CD45\nuser fleet\nand more");
    p.look();
    CHECK_FALSE(p.dot(127, 0));
    CHECK(p.dots(0, 8) > 20);
    CHECK(p.dots(9, 17) > 20);
    p.display.show_text("482913", "fleet.example.org");
    p.look();
    CHECK(p.dot(127, 0));
}

TEST_CASE("a picture becomes dots, as many as it is bright") {
    Panel p;
    screen::jpeg_width = 64;
    screen::jpeg_height = 64;
    REQUIRE(p.display.show_picture(fleet::Bytes("\xff")).ok());  // white
    p.look();
    CHECK(p.dots(0, 64) == 64 * 64);
    CHECK_FALSE(p.dot(31, 10));
    CHECK(p.dot(32, 10));
    REQUIRE(p.display.show_picture(fleet::Bytes("\x84")).ok());  // 0x8484: grey with much green
    p.look();
    CHECK(p.dots(0, 64) > 64 * 64 / 3);
    CHECK(p.dots(0, 64) < 64 * 64 * 2 / 3);
    screen::bad_jpeg = true;
    CHECK(name_of(p.display.show_picture(fleet::Bytes("x"))) == "corrupt");
    CHECK(p.look() == 0);
}

TEST_CASE("a snapshot is a JPEG of what is shown") {
    Panel p;
    p.display.show_text("Title", "");
    std::string file;
    const auto sink = [&](fleet::Bytes b) {
        file.append(b.text());
        return fleet::Status{};
    };
    REQUIRE(p.display.snapshot(fleet::PictureFormat::jpeg, 80, sink).ok());
    CHECK(file == "\x50\xff\xff");  // quality and the first dot
    CHECK(name_of(p.display.snapshot(fleet::PictureFormat::png, 80, sink)) == "unsupported");
    CHECK(fake::heap::blocks.empty());
}

TEST_CASE("brightness is contrast, and 0 is dark; there are no themes") {
    Panel p;
    REQUIRE(p.display.set_brightness(100).ok());
    p.look();
    CHECK(p.contrast == 255);
    CHECK(p.display.brightness().value() == 100);
    REQUIRE(p.display.set_brightness(0).ok());
    p.look();
    CHECK_FALSE(p.lit);
    CHECK(name_of(p.display.set_brightness(101)) == "invalid");
    CHECK(name_of(p.display.set_theme("dark")) == "unsupported");
    CHECK(p.display.theme().empty());
}

TEST_CASE("a screen that is not there is a failure; one that comes loose is drawn whole once it is back") {
    Panel p;
    i2c::answers = false;
    fleet::esp::OledDisplay none;
    CHECK(name_of(none.start({})) == "timeout");
    p.display.show_text("a", "b");
    CHECK(name_of(p.display.set_brightness(10)) == "timeout");
    CHECK(p.display.brightness().value() == 50);
    i2c::answers = true;
    p.display.show_text("a", "b");
    CHECK(p.look() == 8);
}

TEST_SUITE_END();
