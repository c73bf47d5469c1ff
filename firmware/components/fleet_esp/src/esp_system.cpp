// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/esp_system.hpp"

#include "fleet/hex.hpp"
#include "fleet/json_writer.hpp"

#include "esp_app_desc.h"
#include "esp_chip_info.h"
#include "esp_flash.h"
#include "esp_heap_caps.h"
#include "esp_log.h"
#include "esp_mac.h"
#include "esp_partition.h"
#include "esp_random.h"
#include "esp_system.h"
#include "esp_task_wdt.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "system";
constexpr std::uint32_t internal = MALLOC_CAP_INTERNAL | MALLOC_CAP_8BIT;
constexpr std::size_t longest_table = 1536;  // some fifteen partitions

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
    return {field, strnlen(field, N)};
}

void write_partition(JsonWriter &json, const esp_partition_t &partition) {
    json.begin_object()
        .member("label", text_of(partition.label))
        .member("type", static_cast<int>(partition.type))
        .member("subtype", static_cast<int>(partition.subtype))
        .member("address", partition.address)
        .member("size", partition.size)
        .end_object();
}

}  // namespace

EspSystem::EspSystem() {
    const esp_app_desc_t &desc = *esp_app_get_description();
    app_.project = text_of(desc.project_name);
    app_.version = text_of(desc.version);
    // A reproducible build, which is the usual one, states no time.
    if (desc.date[0] != '\0') app_.compile_time = text_of(desc.date) + "T" + text_of(desc.time) + "Z";
    app_.idf_version = text_of(desc.idf_ver);
    app_.elf_sha256 = encode_hex({desc.app_elf_sha256, sizeof desc.app_elf_sha256});
    app_.secure_version = desc.secure_version;
}

void EspSystem::restart() {
    ESP_LOGW(TAG, "restarting");
    esp_restart();
}

ResetReason EspSystem::reset_reason() const {
    switch (esp_reset_reason()) {
        case ESP_RST_POWERON: return ResetReason::power_on;
        case ESP_RST_SW: return ResetReason::software;
        case ESP_RST_PANIC:
        case ESP_RST_CPU_LOCKUP: return ResetReason::panic;
        case ESP_RST_INT_WDT:
        case ESP_RST_TASK_WDT:
        case ESP_RST_WDT: return ResetReason::watchdog;
        case ESP_RST_BROWNOUT:
        case ESP_RST_PWR_GLITCH: return ResetReason::brownout;
        case ESP_RST_DEEPSLEEP: return ResetReason::deep_sleep;
        case ESP_RST_EXT:
        case ESP_RST_USB:
        case ESP_RST_JTAG: return ResetReason::external;
        default: return ResetReason::other;
    }
}

std::uint32_t EspSystem::heap_free() const {
    return heap_caps_get_free_size(internal);
}

std::uint32_t EspSystem::heap_min() const {
    return heap_caps_get_minimum_free_size(internal);
}

std::uint32_t EspSystem::heap_largest() const {
    return heap_caps_get_largest_free_block(internal);
}

ChipInfo EspSystem::chip() const {
    esp_chip_info_t raw = {};
    esp_chip_info(&raw);
    ChipInfo info;
    info.model = CONFIG_IDF_TARGET;
    info.image_id = CONFIG_IDF_FIRMWARE_CHIP_ID;
    info.cores = raw.cores;
    info.revision = raw.revision;
    if (esp_flash_get_size(nullptr, &info.flash_size) != ESP_OK) info.flash_size = 0;
    return info;
}

std::string EspSystem::mac() const {
    std::uint8_t m[6] = {};
    esp_read_mac(m, ESP_MAC_WIFI_STA);
    char text[18];
    std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
    return text;
}

void EspSystem::random(MutableBytes into) const {
    esp_fill_random(into.data, into.size);
}

std::string EspSystem::partition_table_json() const {
    std::string buffer(longest_table, '\0');
    JsonWriter json(buffer.data(), buffer.size());
    json.begin_array();
    esp_partition_iterator_t it = esp_partition_find(ESP_PARTITION_TYPE_ANY, ESP_PARTITION_SUBTYPE_ANY, nullptr);
    for (; it != nullptr; it = esp_partition_next(it))
        write_partition(json, *esp_partition_get(it));
    esp_partition_iterator_release(it);
    json.end_array();
    if (json.overflow()) return "[]";
    return std::string(json.view());
}

void EspSystem::stacks(FunctionRef<void(std::string_view, std::uint32_t)> each) const {
    const UBaseType_t room = uxTaskGetNumberOfTasks() + 2;  // one may start meanwhile
    const std::unique_ptr<TaskStatus_t[]> tasks(new (std::nothrow) TaskStatus_t[room]);
    if (tasks == nullptr) return;
    const UBaseType_t count = uxTaskGetSystemState(tasks.get(), room, nullptr);
    for (UBaseType_t i = 0; i < count; ++i)
        each(tasks[i].pcTaskName, tasks[i].usStackHighWaterMark);  // in bytes, as ESP-IDF counts stacks
}

// Tasks that are not watched get an error, which changes nothing.
void EspSystem::feed_watchdog() {
    esp_task_wdt_reset();
}

}  // namespace fleet::esp
