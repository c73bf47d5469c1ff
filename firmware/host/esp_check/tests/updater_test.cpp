// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/ota_updater.hpp"

using fleet::Bytes;
using fleet::SlotState;
using fleet::esp::OtaUpdater;
namespace ota = fake::ota;

namespace {

constexpr std::uint32_t image_size = 900000;

struct Update {
    Update() { fake::reset(); }
    void write_image(const char *project = "fleet_unit", std::uint32_t secure_version = 1) {
        REQUIRE(updater.begin(image_size, 0).ok());
        REQUIRE(updater.write(Bytes("image")).ok());
        ota::describe(ota::slots[1], project, "1.1.0", secure_version);
    }
    OtaUpdater updater;
};

}  // namespace

TEST_SUITE_BEGIN("updater");

TEST_CASE("slots describe themselves") {
    Update u;
    ota::slots[0].state = ESP_OTA_IMG_PENDING_VERIFY;
    const fleet::SlotInfo running = u.updater.running();
    CHECK(running.label == "ota_0");
    CHECK(running.version == "1.0.0");
    CHECK(running.elf_sha256.substr(0, 4) == "abab");
    CHECK(running.elf_sha256.size() == 64);
    CHECK(running.size == 0x1e0000);
    CHECK(running.state == SlotState::pending_verify);
    const auto other = u.updater.other();
    REQUIRE(other.ok());
    CHECK(other.value().label == "ota_1");
    CHECK(other.value().version.empty());
    CHECK(other.value().state == SlotState::undefined);
}

TEST_CASE("an image is written, checked and booted") {
    Update u;
    u.write_image();
    CHECK(ota::erase_mode == OTA_WITH_SEQUENTIAL_WRITES);
    REQUIRE(u.updater.finish().ok());
    CHECK(ota::boots == nullptr);
    std::uint8_t back[5] = {};
    REQUIRE(u.updater.read_back(0, {back, 5}).ok());
    CHECK(std::string(back, back + 5) == "image");
    REQUIRE(u.updater.boot_other().ok());
    CHECK(ota::boots == &ota::slots[1].partition);
}

TEST_CASE("writing resumes at a sector, and keeps what is there") {
    Update u;
    REQUIRE(u.updater.begin(image_size, 65536).ok());
    CHECK(ota::resumed_at == 65536);
    CHECK(ota::erase_mode == OTA_WITH_SEQUENTIAL_WRITES);
    REQUIRE(u.updater.write(Bytes("x")).ok());
    CHECK(ota::slots[1].flash.size() == 65537);
    u.updater.abort();
    CHECK(ota::aborted);
    CHECK(name_of(u.updater.begin(image_size, 65537)) == "invalid");
    CHECK(name_of(u.updater.begin(4096, 8192)) == "invalid");
}

TEST_CASE("what cannot work is refused before flash is touched") {
    Update u;
    CHECK(name_of(u.updater.begin(0x1e0001, 0)) == "no_space");
    REQUIRE(u.updater.begin(image_size, 0).ok());
    CHECK(name_of(u.updater.begin(image_size, 0)) == "busy");
    u.updater.abort();
    ota::begin_result = ESP_ERR_OTA_ROLLBACK_INVALID_STATE;
    CHECK(name_of(u.updater.begin(image_size, 0)) == "refused");
    CHECK(name_of(u.updater.write(Bytes("x"))) == "invalid");
    CHECK(name_of(u.updater.finish()) == "invalid");
}

TEST_CASE("a damaged image is corrupt, and another may follow") {
    Update u;
    u.write_image();
    ota::end_result = ESP_ERR_OTA_VALIDATE_FAILED;
    CHECK(name_of(u.updater.finish()) == "corrupt");
    ota::end_result = ESP_OK;
    u.write_image();
    CHECK(u.updater.finish().ok());
}

TEST_CASE("an image of another project or an older secure version is not ours") {
    Update u;
    u.write_image("other_project");
    CHECK(name_of(u.updater.finish()) == "wrong_target");
    u.write_image("fleet_unit", 0);
    CHECK(name_of(u.updater.finish()) == "wrong_target");
}

TEST_CASE("a flash that fails says so") {
    Update u;
    REQUIRE(u.updater.begin(image_size, 0).ok());
    ota::write_result = ESP_FAIL;
    CHECK(name_of(u.updater.write(Bytes("x"))) == "io");
}

TEST_CASE("one slot: nothing to write to, nothing to go back to") {
    Update u;
    ota::slots.resize(1);
    ota::rollback_possible = false;
    CHECK(name_of(u.updater.other()) == "not_found");
    CHECK(name_of(u.updater.begin(image_size, 0)) == "not_found");
    CHECK(name_of(u.updater.boot_other()) == "not_found");
    CHECK(name_of(u.updater.read_back(0, {})) == "not_found");
    CHECK(name_of(u.updater.mark_invalid()) == "refused");
    CHECK_FALSE(ota::marked_invalid);
}

TEST_CASE("verdicts reach the bootloader's data") {
    Update u;
    REQUIRE(u.updater.mark_valid().ok());
    CHECK(ota::marked_valid);
    REQUIRE(u.updater.mark_invalid().ok());
    CHECK(ota::marked_invalid);
    ota::boot_result = ESP_ERR_OTA_VALIDATE_FAILED;
    CHECK(name_of(u.updater.boot_other()) == "corrupt");
}
