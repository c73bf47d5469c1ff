// SPDX-License-Identifier: Apache-2.0
#include "slots.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

TEST_SUITE("slots") {
    TEST_CASE("a new image boots once to prove itself, and stays when it did") {
        Flash flash;
        auto old = flash.updater(flash.boot());
        REQUIRE(install(old, image_of("1.1.0")).ok());

        const auto booted = flash.boot();
        auto fresh = flash.updater(booted);
        CHECK(fresh.running().version == "1.1.0");
        CHECK(fresh.running().label == "ota_1");
        CHECK(fresh.running().state == SlotState::pending_verify);
        CHECK(fresh.begin(100, 0).code == Code::refused);
        REQUIRE(fresh.mark_valid().ok());

        const auto again = flash.boot();
        CHECK(again.image.app.version == "1.1.0");
        CHECK(again.data.states[1] == SlotState::valid);
        CHECK(again.data.boot_count == 3);
    }

    TEST_CASE("a second boot while pending rolls back, and says from what") {
        Flash flash;
        auto old = flash.updater(flash.boot());
        REQUIRE(install(old, image_of("1.1.0")).ok());
        CHECK(flash.boot().image.app.version == "1.1.0");
        const auto back = flash.boot();
        CHECK(back.image.app.version == "1.0.0");
        const auto other = flash.updater(back).other();
        REQUIRE(other.ok());
        CHECK(other.value().version == "1.1.0");
        CHECK(other.value().state == SlotState::aborted);
    }

    TEST_CASE("an image that calls itself invalid does not boot again, nor is it gone back to") {
        Flash flash;
        auto old = flash.updater(flash.boot());
        REQUIRE(install(old, image_of("1.1.0")).ok());
        auto fresh = flash.updater(flash.boot());
        REQUIRE(fresh.mark_invalid().ok());
        const auto back = flash.boot();
        CHECK(back.image.app.version == "1.0.0");
        CHECK(back.data.states[1] == SlotState::invalid);
        CHECK(flash.updater(back).mark_invalid().code == Code::not_found);
    }

    TEST_CASE("a valid image goes back to the one before it") {
        Flash flash;
        auto old = flash.updater(flash.boot());
        REQUIRE(install(old, image_of("1.1.0")).ok());
        auto fresh = flash.updater(flash.boot());
        REQUIRE(fresh.mark_valid().ok());
        REQUIRE(fresh.mark_invalid().ok());
        CHECK(flash.boot().image.app.version == "1.0.0");
    }

    TEST_CASE("what is no good image does not become the one that boots") {
        std::string image = image_of("1.1.0");
        Code want = Code::corrupt;
        SUBCASE("one bit in the payload") {
            image[20000] = static_cast<char>(image[20000] ^ 1);
        }
        SUBCASE("one bit in the hash") {
            image.back() = static_cast<char>(image.back() ^ 1);
        }
        SUBCASE("no description") {
            image[33] = 0;
        }
        SUBCASE("no image at all") {
            image.assign(image.size(), 'x');
        }
        SUBCASE("cut short") {
            image.resize(image.size() / 2);
        }
        SUBCASE("nothing but a header") {
            image.resize(24);
        }
        SUBCASE("a segment that claims the world") {
            image[31] = '\x7f';
        }
        SUBCASE("another chip") {
            image[12] = 5;
            want = Code::wrong_target;
        }
        Flash flash;
        auto updater = flash.updater(flash.boot());
        const Status status = install(updater, image);
        CHECK_MESSAGE(status.code == want, status.why);
        CHECK_FALSE(updater.boot_other().ok());
        CHECK(flash.boot().image.app.version == "1.0.0");
    }

    TEST_CASE("bounds of an update") {
        Flash flash;
        auto updater = flash.updater(flash.boot());
        CHECK(updater.begin(slot_size + 1, 0).code == Code::no_space);
        CHECK(updater.begin(1000, 500).code == Code::invalid);  // nothing there to go on from
        REQUIRE(updater.begin(10, 0).ok());
        CHECK(updater.write(Bytes{"eleven bytes"}).code == Code::invalid);
        REQUIRE(updater.write(Bytes{"nine byte"}).ok());
        CHECK(updater.finish().code == Code::corrupt);
        CHECK(updater.write(Bytes{"x"}).code == Code::invalid);  // not open any more
    }

    TEST_CASE("a download goes on where it was cut") {
        Flash flash;
        const std::string image = image_of("1.1.0");
        const auto size = static_cast<std::uint32_t>(image.size());
        {
            auto updater = flash.updater(flash.boot());
            REQUIRE(updater.begin(size, 0).ok());
            REQUIRE(updater.write(Bytes{image.substr(0, 10000)}).ok());
        }
        auto updater = flash.updater(flash.boot());
        REQUIRE(updater.begin(size, 8192).ok());
        std::string kept(8192, '\0');
        REQUIRE(updater.read_back(0, {reinterpret_cast<std::uint8_t *>(&kept[0]), kept.size()}).ok());
        CHECK(kept == image.substr(0, 8192));
        REQUIRE(updater.write(Bytes{image.substr(8192)}).ok());
        REQUIRE(updater.finish().ok());
        REQUIRE(updater.boot_other().ok());
        CHECK(flash.boot().image.app.version == "1.1.0");
    }

    TEST_CASE("an image older than the fuses allow is refused") {
        Flash flash;
        host::SlotUpdater updater({flash.dir.path(), chip_s3, slot_size, 1}, flash.boot());
        CHECK(install(updater, image_of("1.1.0")).code == Code::wrong_target);
    }

    TEST_CASE("damaged boot data and a damaged slot still boot what is whole") {
        Flash flash;
        auto updater = flash.updater(flash.boot());
        REQUIRE(install(updater, image_of("1.1.0")).ok());
        SUBCASE("boot data") {
            put_file(flash.dir / "otadata.json", "{\"boot\":\"ota_");
        }
        SUBCASE("the new slot") {
            put_file(flash.dir / "slot_b.bin", "x");
        }
        CHECK(flash.boot().image.app.version == "1.0.0");
    }

    TEST_CASE("nothing to boot is a failure with a reason") {
        TempDir empty;
        CHECK(host::boot(empty.path(), chip_s3).status().code == Code::not_found);
    }
}
