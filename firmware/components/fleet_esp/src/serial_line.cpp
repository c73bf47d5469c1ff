// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/serial_line.hpp"

#include "fleet_esp/status_of.hpp"

#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#if CONFIG_ESP_CONSOLE_USB_SERIAL_JTAG
#include "driver/usb_serial_jtag.h"
#include "driver/usb_serial_jtag_vfs.h"
#else
#include "driver/uart.h"
#include "driver/uart_vfs.h"
#endif

#include <string>
#include <utility>

namespace fleet::esp {

namespace {

constexpr std::uint32_t stack = 3072;
constexpr UBaseType_t priority = 3;
constexpr std::size_t piece = 64;

#if CONFIG_ESP_CONSOLE_USB_SERIAL_JTAG

esp_err_t install() {
    usb_serial_jtag_driver_config_t config = {};
    config.tx_buffer_size = 512;
    config.rx_buffer_size = 512;
    const esp_err_t err = usb_serial_jtag_driver_install(&config);
    if (err == ESP_OK) usb_serial_jtag_vfs_use_driver();  // the log shares the line with us
    return err;
}

int read_line(void *buffer, std::size_t size) {
    return usb_serial_jtag_read_bytes(buffer, size, portMAX_DELAY);
}

// There may be no listener: better to lose bytes than to wait.
void write_line(const void *bytes, std::size_t size) {
    usb_serial_jtag_write_bytes(bytes, size, pdMS_TO_TICKS(100));
}

#else

constexpr uart_port_t port = static_cast<uart_port_t>(CONFIG_ESP_CONSOLE_UART_NUM);

esp_err_t install() {
    const esp_err_t err = uart_driver_install(port, 512, 0, 0, nullptr, 0);
    if (err == ESP_OK) uart_vfs_dev_use_driver(port);
    return err;
}

// A read of many bytes waits for all of them, so the first one is read alone.
int read_line(void *buffer, std::size_t size) {
    const int first = uart_read_bytes(port, buffer, 1, portMAX_DELAY);
    if (first <= 0) return first;
    const int rest = uart_read_bytes(port, static_cast<char *>(buffer) + 1, size - 1, pdMS_TO_TICKS(10));
    return rest > 0 ? first + rest : first;
}

void write_line(const void *bytes, std::size_t size) {
    uart_write_bytes(port, bytes, size);
}

#endif

}  // namespace

Status SerialLine::start() {
    const esp_err_t err = install();
    if (err != ESP_OK) return status_of(err, "the serial line did not open");
    if (xTaskCreate(run, "serial", stack, this, priority, nullptr) != pdPASS) {
        return {Code::no_memory, "no memory for the serial line's task"};
    }
    return {};
}

void SerialLine::run(void *self) {
    for (;;)
        static_cast<SerialLine *>(self)->turn();
}

void SerialLine::turn() {
    char buffer[piece];
    const int size = read_line(buffer, sizeof buffer);
    if (size <= 0) return;
    executor_.post([this, text = std::string(buffer, static_cast<std::size_t>(size))] {
        if (on_bytes) on_bytes(Bytes(text));
    });
}

void SerialLine::send(std::string_view bytes) {
    write_line(bytes.data(), bytes.size());
}

}  // namespace fleet::esp
