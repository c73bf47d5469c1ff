// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include "esp_log.h"

namespace fake {

namespace rtos {
extern int notified;
extern std::int64_t date_us;
}  // namespace rtos
namespace events {
struct Handler {
    esp_event_base_t base;
    std::int32_t id;
    esp_event_handler_t handler;
    void *arg;
};
extern std::vector<Handler> handlers;
}  // namespace events
namespace wifi {
extern bool associated, connecting;
}
namespace log {
extern vprintf_like_t sink;
}

namespace {

void reset_storage() {
    nvs::values.clear();
    nvs::init_result = nvs::write_result = ESP_OK;
    nvs::erases = nvs::commits = 0;
    ota::slots.assign(2, {});
    for (unsigned i = 0; i < 2; ++i) {
        ota::Slot &slot = ota::slots[i];
        slot.partition.subtype = i == 0 ? ESP_PARTITION_SUBTYPE_APP_OTA_0 : ESP_PARTITION_SUBTYPE_APP_OTA_1;
        slot.partition.address = 0x40000 + i * 0x1e0000;
        slot.partition.size = 0x1e0000;
        std::string("ota_").append(1, static_cast<char>('0' + i)).copy(slot.partition.label, 16);
    }
    ota::describe(ota::slots[0], "fleet_unit", "1.0.0", 1);
    ota::slots[0].state = ESP_OTA_IMG_VALID;
    ota::boots = nullptr;
    ota::erase_mode = ota::resumed_at = 0;
    ota::begin_result = ota::write_result = ota::end_result = ota::boot_result = ESP_OK;
    ota::rollback_possible = true;
    ota::marked_valid = ota::marked_invalid = ota::aborted = false;
    core_dump::present = false;
    core_dump::checks = 0;
    core_dump::bytes.clear();
    core_dump::reason.clear();
    core_dump::summary = {};
}

void reset_network() {
    http::answers.clear();
    http::requests.clear();
    http::reads = 0;
    mqtt::clients.clear();
    mqtt::publish_result = 0;
    mqtt::start_result = ESP_OK;
    events::handlers.clear();
    wifi::stored = {};
    wifi::connects = wifi::disconnects = wifi::starts = wifi::access_points = wifi::collisions = 0;
    wifi::found.clear();
    wifi::init_result = wifi::scan_result = wifi::connect_result = ESP_OK;
    wifi::associated = wifi::connecting = false;
    provisioning::initialized = provisioning::started = false;
    provisioning::resets = 0;
    provisioning::configured = {};
    provisioning::srp_result = provisioning::configure_result = ESP_OK;
    provisioning::shared_server = nullptr;
    provisioning::shared_server_ran = false;
    web::running = false;
    web::start_result = ESP_OK;
    web::handlers.clear();
    web::errors.clear();
    udp::opened = udp::closed = udp::port = 0;
    udp::bind_result = ESP_OK;
    udp::incoming.clear();
    udp::sent.clear();
    dhcp::name_server = 0;
    dhcp::offer = dhcp::starts = 0;
}

void reset_chip() {
    rtos::now_us = 1000000;
    rtos::tasks = rtos::tasks_to_refuse = rtos::watchdog_feeds = rtos::notified = 0;
    rtos::stacks.clear();
    rtos::current = nullptr;
    rtos::date_us = rtos::longest_unfed_us = rtos::longest_turn_us = 0;
    rtos::last_feed_us = rtos::now_us;
    chip::reset_reason = ESP_RST_POWERON;
    chip::restarts = 0;
    chip::serial.clear();
    chip::has_hmac_key = false;
    chip::pins.clear();
    chip::next_random = 0;
    i2c::answers = true;
    i2c::registers.clear();
    i2c::address = 0;
    i2c::written.clear();
    lights::duty.clear();
    lights::pin.clear();
    lights::rgb = 0;
    lights::result = ESP_OK;
    heap::blocks.clear();
    screen::dots.clear();
    screen::result = ESP_OK;
    screen::hangs = screen::bad_jpeg = false;
    serial::incoming.clear();
    serial::outgoing.clear();
    serial::result = ESP_OK;
    log::text.clear();
    log::sink = nullptr;
}

}  // namespace

void reset() {
    reset_storage();
    reset_network();
    reset_chip();
}

}  // namespace fake
