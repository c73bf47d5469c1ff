// SPDX-License-Identifier: Apache-2.0
// The chip and what hangs on its pins.
#include "fakes.hpp"

#include "driver/i2c_master.h"
#include "driver/ledc.h"
#include "driver/temperature_sensor.h"
#include "driver/uart.h"
#include "driver/uart_vfs.h"
#include "driver/usb_serial_jtag.h"
#include "driver/usb_serial_jtag_vfs.h"
#include "esp_chip_info.h"
#include "esp_efuse_table.h"
#include "esp_flash.h"
#include "esp_heap_caps.h"
#include "esp_hmac.h"
#include "esp_log.h"
#include "esp_mac.h"
#include "esp_random.h"
#include "led_strip.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace fake::chip {
esp_reset_reason_t reset_reason = ESP_RST_POWERON;
int restarts = 0;
std::string serial;
bool has_hmac_key = false;
std::map<int, int> pins;
float celsius = 0;
std::uint8_t next_random = 0;
}  // namespace fake::chip

namespace fake::i2c {
bool answers = true;
std::map<int, std::string> registers;
int address = 0;
std::vector<std::string> written;
}  // namespace fake::i2c

namespace fake::lights {
std::map<int, std::uint32_t> duty;
std::map<int, int> pin;
std::uint32_t rgb = 0;
esp_err_t result = ESP_OK;
}  // namespace fake::lights

namespace fake::serial {
std::string incoming, outgoing;
esp_err_t result = ESP_OK;
}  // namespace fake::serial

namespace fake::heap {
std::uint32_t asked = 0;
std::vector<std::unique_ptr<std::uint8_t[]>> blocks;
}  // namespace fake::heap

namespace fake::log {
std::string text;
vprintf_like_t sink = nullptr;
}  // namespace fake::log

using namespace fake;

struct led_strip_t {};
const esp_efuse_desc_t *ESP_EFUSE_USER_DATA[] = {nullptr};

namespace {

int to_console(const char *format, va_list args) {
    char line[512];
    const int size = std::vsnprintf(line, sizeof line, format, args);
    log::text += line;
    return size;
}

void print(const char *format, ...) {
    va_list args;
    va_start(args, format);
    (log::sink != nullptr ? log::sink : to_console)(format, args);
    va_end(args);
}

int take(void *buffer, std::uint32_t length) {
    const std::size_t size = std::min<std::size_t>(length, serial::incoming.size());
    serial::incoming.copy(static_cast<char *>(buffer), size);
    serial::incoming.erase(0, size);
    return static_cast<int>(size);
}

}  // namespace

void fake::log::write(const std::string &piece) {
    print("%s", piece.c_str());
}

extern "C" {

const char *esp_err_to_name(esp_err_t) {
    return "ESP_ERR";
}
void _esp_error_check_failed(esp_err_t, const char *, int, const char *, const char *) {
    std::abort();
}
void esp_log_level_set(const char *, esp_log_level_t) {}
vprintf_like_t esp_log_set_vprintf(vprintf_like_t sink) {
    const vprintf_like_t before = log::sink != nullptr ? log::sink : to_console;
    log::sink = sink;
    return before;
}
// As the real macros write: "W (1234) tag: text".
void esp_log_write(esp_log_level_t level, const char *tag, const char *format, ...) {
    const std::string head = std::string(1, "NEWIDV"[level]) + " (1234) " + tag + ": " + format;
    va_list args;
    va_start(args, format);
    (log::sink != nullptr ? log::sink : to_console)(head.c_str(), args);
    va_end(args);
}

esp_reset_reason_t esp_reset_reason(void) {
    return chip::reset_reason;
}
void esp_restart(void) {
    ++chip::restarts;
}
esp_err_t esp_read_mac(uint8_t *mac, esp_mac_type_t) {
    const uint8_t own[] = {0xa0, 0x85, 0xe3, 0x11, 0x22, 0x33};
    std::memcpy(mac, own, sizeof own);
    return ESP_OK;
}
void esp_fill_random(void *buf, size_t len) {
    for (size_t i = 0; i < len; ++i)
        static_cast<uint8_t *>(buf)[i] = chip::next_random++;
}
size_t heap_caps_get_free_size(uint32_t caps) {
    heap::asked = caps;
    return 123456;
}
size_t heap_caps_get_minimum_free_size(uint32_t caps) {
    heap::asked = caps;
    return 65432;
}
size_t heap_caps_get_largest_free_block(uint32_t caps) {
    heap::asked = caps;
    return 45056;
}
// Aligned to four bytes and no more, as on a chip.
void *heap_caps_malloc(size_t size, uint32_t) {
    return heap::blocks.emplace_back(new std::uint8_t[size + 4]).get() + 4;
}
void *heap_caps_aligned_alloc(size_t, size_t size, uint32_t) {
    return heap::blocks.emplace_back(new std::uint8_t[size]).get();  // 16 bytes, on the host
}
void heap_caps_free(void *ptr) {
    const auto is_it = [ptr](const std::unique_ptr<std::uint8_t[]> &block) {
        return block.get() == ptr || block.get() + 4 == ptr;
    };
    heap::blocks.erase(std::remove_if(heap::blocks.begin(), heap::blocks.end(), is_it), heap::blocks.end());
}
void esp_chip_info(esp_chip_info_t *info) {
    *info = {CHIP_ESP32S3, 0, 2, 2};
}
esp_err_t esp_flash_get_size(esp_flash_t *, uint32_t *size) {
    *size = 8 << 20;
    return ESP_OK;
}
esp_err_t esp_efuse_read_field_blob(const esp_efuse_desc_t *[], void *dst, size_t bits) {
    std::memset(dst, 0, bits / 8);
    chip::serial.copy(static_cast<char *>(dst), bits / 8);
    return ESP_OK;
}
esp_efuse_purpose_t esp_efuse_get_key_purpose(esp_efuse_block_t) {
    return chip::has_hmac_key ? ESP_EFUSE_KEY_PURPOSE_HMAC_UP : ESP_EFUSE_KEY_PURPOSE_USER;
}
esp_err_t esp_hmac_calculate(hmac_key_id_t, const void *message, size_t length, uint8_t *hmac) {
    std::memset(hmac, 0, 32);
    std::memcpy(hmac, message, std::min<size_t>(length, 32));  // shows what was asked
    return ESP_OK;
}

esp_err_t gpio_config(const gpio_config_t *) {
    return ESP_OK;
}
esp_err_t gpio_set_level(gpio_num_t gpio, uint32_t level) {
    chip::pins[gpio] = static_cast<int>(level);
    return ESP_OK;
}
esp_err_t i2c_new_master_bus(const i2c_master_bus_config_t *, i2c_master_bus_handle_t *) {
    return ESP_OK;
}
esp_err_t i2c_master_bus_add_device(i2c_master_bus_handle_t, const i2c_device_config_t *config,
                                    i2c_master_dev_handle_t *) {
    i2c::address = config->device_address;
    return ESP_OK;
}
esp_err_t i2c_master_transmit(i2c_master_dev_handle_t, const uint8_t *out, size_t size, int timeout_ms) {
    if (!i2c::answers) {
        rtos::pass(std::int64_t{timeout_ms} * 1000);
        return ESP_ERR_TIMEOUT;
    }
    i2c::written.emplace_back(reinterpret_cast<const char *>(out), size);
    return ESP_OK;
}
esp_err_t i2c_master_transmit_receive(i2c_master_dev_handle_t, const uint8_t *out, size_t, uint8_t *in, size_t size,
                                      int timeout_ms) {
    if (!i2c::answers) {
        rtos::pass(std::int64_t{timeout_ms} * 1000);
        return ESP_ERR_TIMEOUT;
    }
    std::string bytes = i2c::registers[out[0]];
    bytes.resize(size);
    bytes.copy(reinterpret_cast<char *>(in), size);
    return ESP_OK;
}
int gpio_get_level(gpio_num_t gpio) {
    return chip::pins.count(gpio) != 0 ? chip::pins[gpio] : 1;
}
esp_err_t temperature_sensor_install(const temperature_sensor_config_t *, temperature_sensor_handle_t *) {
    return ESP_OK;
}
esp_err_t temperature_sensor_enable(temperature_sensor_handle_t) {
    return ESP_OK;
}
esp_err_t temperature_sensor_get_celsius(temperature_sensor_handle_t, float *celsius) {
    *celsius = chip::celsius;
    return ESP_OK;
}

esp_err_t ledc_timer_config(const ledc_timer_config_t *) {
    return lights::result;
}
esp_err_t ledc_channel_config(const ledc_channel_config_t *config) {
    lights::pin[config->channel] = config->gpio_num;
    return lights::result;
}
esp_err_t ledc_set_duty(ledc_mode_t, ledc_channel_t channel, uint32_t duty) {
    lights::duty[channel] = duty;
    return lights::result;
}
esp_err_t ledc_update_duty(ledc_mode_t, ledc_channel_t) {
    return lights::result;
}
esp_err_t led_strip_new_rmt_device(const led_strip_config_t *, const led_strip_rmt_config_t *,
                                   led_strip_handle_t *strip) {
    static led_strip_t one;
    *strip = lights::result == ESP_OK ? &one : nullptr;
    return lights::result;
}
esp_err_t led_strip_set_pixel(led_strip_handle_t, uint32_t, uint32_t r, uint32_t g, uint32_t b) {
    lights::rgb = r << 16 | g << 8 | b;
    return ESP_OK;
}
esp_err_t led_strip_refresh(led_strip_handle_t) {
    return ESP_OK;
}

esp_err_t uart_driver_install(uart_port_t, int, int, int, QueueHandle_t *, int) {
    return serial::result;
}
int uart_read_bytes(uart_port_t, void *buffer, uint32_t length, TickType_t) {
    return take(buffer, length);
}
int uart_write_bytes(uart_port_t, const void *bytes, size_t size) {
    serial::outgoing.append(static_cast<const char *>(bytes), size);
    return static_cast<int>(size);
}
void uart_vfs_dev_use_driver(int) {}
esp_err_t usb_serial_jtag_driver_install(usb_serial_jtag_driver_config_t *) {
    return serial::result;
}
int usb_serial_jtag_read_bytes(void *buffer, uint32_t length, TickType_t) {
    return take(buffer, length);
}
int usb_serial_jtag_write_bytes(const void *bytes, size_t size, TickType_t) {
    return uart_write_bytes(UART_NUM_0, bytes, size);
}
void usb_serial_jtag_vfs_use_driver(void) {}
}
