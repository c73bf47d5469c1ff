// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "esp_heap_caps.h"
#include "fleet/hex.hpp"
#include "fleet/json.hpp"
#include "fleet_esp/announce.hpp"
#include "fleet_esp/efuse_identity.hpp"
#include "fleet_esp/esp_crypto.hpp"
#include "fleet_esp/esp_system.hpp"
#include "fleet_esp/flash_core_dump.hpp"

#include <cstring>

using fleet::ResetReason;

TEST_SUITE_BEGIN("chip");

TEST_CASE("reasons of a reset") {
    fake::reset();
    const fleet::esp::EspSystem system;
    const struct {
        esp_reset_reason_t raw;
        ResetReason reason;
    } table[] = {{ESP_RST_POWERON, ResetReason::power_on},     {ESP_RST_SW, ResetReason::software},
                 {ESP_RST_PANIC, ResetReason::panic},          {ESP_RST_CPU_LOCKUP, ResetReason::panic},
                 {ESP_RST_TASK_WDT, ResetReason::watchdog},    {ESP_RST_INT_WDT, ResetReason::watchdog},
                 {ESP_RST_BROWNOUT, ResetReason::brownout},    {ESP_RST_PWR_GLITCH, ResetReason::brownout},
                 {ESP_RST_DEEPSLEEP, ResetReason::deep_sleep}, {ESP_RST_USB, ResetReason::external},
                 {ESP_RST_UNKNOWN, ResetReason::other},        {ESP_RST_SDIO, ResetReason::other}};
    for (const auto &row : table) {
        fake::chip::reset_reason = row.raw;
        CHECK(system.reset_reason() == row.reason);
    }
}

TEST_CASE("the chip and its application") {
    fake::reset();
    fake::ota::slots[0].desc = {};
    std::memset(fake::ota::slots[0].desc.version, '9', 32);  // not terminated
    std::strcpy(fake::ota::slots[0].desc.date, "Aug  8 2026");
    std::strcpy(fake::ota::slots[0].desc.time, "08:33:45");
    fleet::esp::EspSystem system;
    CHECK(system.mac() == "a0:85:e3:11:22:33");
    CHECK(fleet::esp::host_name(system) == "fleet-112233");
    CHECK(system.app().version == std::string(32, '9'));
    CHECK(system.app().compile_time == "Aug  8 2026T08:33:45Z");
    fake::ota::slots[0].desc.date[0] = fake::ota::slots[0].desc.time[0] = '\0';
    CHECK(fleet::esp::EspSystem().app().compile_time.empty());
    CHECK(system.chip().cores == 2);
    CHECK(system.chip().flash_size == 8 << 20);
    CHECK(std::string(system.chip().model) == CONFIG_IDF_TARGET);
    fake::chip::celsius = 41.26f;
    CHECK(system.temperature().value() == 412);
    system.restart();
    CHECK(fake::chip::restarts == 1);
}

TEST_CASE("the partition table is JSON as the poll wants it") {
    fake::reset();
    const std::string text = fleet::esp::EspSystem().partition_table_json();
    const auto document = fleet::JsonDocument::parse(text);
    REQUIRE(document.ok());
    const fleet::JsonView slot = document.value().root().first().next();
    CHECK(slot.member("label").text() == "ota_0");
    CHECK(slot.member("type").integer_or(-1) == 0);
    CHECK(slot.member("subtype").integer_or(-1) == 16);
    CHECK(slot.member("address").integer_or(-1) == 0x40000);
    CHECK(slot.member("size").integer_or(-1) == 0x1e0000);
}

TEST_CASE("identity comes from the fuses, if somebody burnt them") {
    fake::reset();
    const fleet::esp::EfuseIdentity identity;
    CHECK(identity.serial().empty());
    CHECK(name_of(identity.hmac("challenge")) == "unsupported");
    fake::chip::serial = "0123456789abcdef0123456789abcde";  // 31: not ours
    CHECK(identity.serial().empty());
    fake::chip::serial += "f";
    CHECK(identity.serial() == fake::chip::serial);
    fake::chip::has_hmac_key = true;
    CHECK(identity.hmac("abc").value() == "616263" + std::string(58, '0'));
}

TEST_CASE("SHA-256 of either Mbed TLS") {
    fleet::esp::EspCrypto crypto;
    const auto sum = crypto.sha256();
    sum->update(fleet::Bytes("a"));
    sum->update(fleet::Bytes("bc"));
    const fleet::Digest digest = sum->finish();
    CHECK(fleet::encode_hex({digest.data(), digest.size()}) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("Ed25519 is there where releases are signed") {
    fleet::esp::EspCrypto crypto;
    fleet::Ed25519Signature signature = {};
    const fleet::Ed25519Key key = {};
#if CONFIG_FLEET_SIGNED_RELEASES
    CHECK(name_of(crypto.verify_ed25519(key, fleet::Bytes("m"), signature)) == "corrupt");
    signature[0] = 1;
    CHECK(crypto.verify_ed25519(key, fleet::Bytes("m"), signature).ok());
#else
    CHECK(name_of(crypto.verify_ed25519(key, fleet::Bytes("m"), signature)) == "unsupported");
#endif
}

TEST_CASE("a core dump is read from behind its header, and no further") {
    fake::reset();
    const fleet::esp::FlashCoreDump none;
    CHECK_FALSE(none.present());
    CHECK(none.size() == 0);
    CHECK(none.summary().empty());
    fleet::esp::FlashCoreDump dump;
    fake::core_dump::present = true;
    fake::core_dump::bytes = "ELF dump";
    std::uint8_t bytes[4] = {};
    REQUIRE(dump.read(4, {bytes, 4}).ok());
    CHECK(std::string(bytes, bytes + 4) == "dump");
    CHECK(dump.size() == 8);
    CHECK(name_of(dump.read(5, {bytes, 4})) == "invalid");
    CHECK(name_of(dump.read(9, {bytes, 0})) == "invalid");
    REQUIRE(dump.erase().ok());
    CHECK_FALSE(dump.present());
}

TEST_CASE("a core dump is summed once, and again after it was erased") {
    fake::reset();
    fake::core_dump::present = true;
    fleet::esp::FlashCoreDump dump;
    for (int beat = 0; beat < 100; ++beat)
        CHECK(dump.present());
    CHECK(fake::core_dump::checks == 1);
    REQUIRE(dump.erase().ok());
    CHECK_FALSE(dump.present());
    CHECK(fake::core_dump::checks == 2);
}

TEST_CASE("heap is the chip's own, and every task says what of its stack is left") {
    fake::reset();
    const fleet::esp::EspSystem system;
    for (const auto &ask :
         {&fleet::esp::EspSystem::heap_free, &fleet::esp::EspSystem::heap_min, &fleet::esp::EspSystem::heap_largest}) {
        fake::heap::asked = 0;
        CHECK((system.*ask)() > 0);
        CHECK(fake::heap::asked == (MALLOC_CAP_INTERNAL | MALLOC_CAP_8BIT));
    }
    fake::rtos::stacks = {{"fleet", 2100}, {"fleet_link", 1700}};
    std::map<std::string, std::uint32_t> found;
    system.stacks([&](std::string_view task, std::uint32_t never_used) { found[std::string(task)] = never_used; });
    CHECK(found == fake::rtos::stacks);
}

TEST_CASE("the summary of a crash is one line") {
    fake::reset();
    fake::core_dump::present = true;
    std::memcpy(fake::core_dump::summary.exc_task, "a_name_of_16____", 16);  // not terminated
    fake::core_dump::summary.exc_pc = 0x400d1234;
#if CONFIG_IDF_TARGET_ARCH_XTENSA
    fake::core_dump::summary.exc_bt_info.bt[0] = 0x400d1234;
    fake::core_dump::summary.exc_bt_info.bt[1] = 0x400d5678;
    fake::core_dump::summary.exc_bt_info.depth = 2;
    const std::string backtrace = " backtrace 0x400d1234 0x400d5678";
#else
    const std::string backtrace;
#endif
    fake::core_dump::reason = "assert failed";
    CHECK(fleet::esp::FlashCoreDump().summary() ==
          "task a_name_of_16____ pc 0x400d1234" + backtrace + " reason assert failed");
}
