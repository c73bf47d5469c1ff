// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/st7789_panel.hpp"

#include "fleet_esp/status_of.hpp"

#include "driver/spi_master.h"
#include "esp_heap_caps.h"
#include "esp_lcd_panel_io.h"
#include "esp_lcd_panel_ops.h"
#include "esp_lcd_panel_vendor.h"

#include <algorithm>
#include <cstring>

namespace fleet::esp {

namespace {

constexpr spi_host_device_t bus = SPI2_HOST;
constexpr int stripe_rows = 16;
constexpr TickType_t longest_stripe = pdMS_TO_TICKS(200);

std::size_t row_bytes(int width) {
    return static_cast<std::size_t>(width) * 2;
}

// Pins are int in IDF 5.5 and gpio_num_t in 6.0, which turns into either.
gpio_num_t pin(int number) {
    return static_cast<gpio_num_t>(number);
}

bool on_sent(esp_lcd_panel_io_handle_t, esp_lcd_panel_io_event_data_t *, void *sent) {
    BaseType_t woken = pdFALSE;
    xSemaphoreGiveFromISR(static_cast<SemaphoreHandle_t>(sent), &woken);
    return woken == pdTRUE;
}

}  // namespace

Status St7789Panel::start(const PanelWiring &wiring) {
    wiring_ = wiring;
    sent_ = xSemaphoreCreateBinary();
    stripe_ = static_cast<std::uint8_t *>(
        heap_caps_malloc(row_bytes(wiring.width) * stripe_rows, MALLOC_CAP_DMA | MALLOC_CAP_INTERNAL));
    if (sent_ == nullptr || stripe_ == nullptr) return {Code::no_memory, "no memory for the screen"};
    Status status = open_bus();
    if (status.ok()) status = open_panel();
    if (status.ok()) status = set_up();
    return status;
}

Status St7789Panel::open_bus() {
    spi_bus_config_t config = {};
    config.mosi_io_num = pin(wiring_.data);
    config.miso_io_num = GPIO_NUM_NC;
    config.sclk_io_num = pin(wiring_.clock);
    config.quadwp_io_num = GPIO_NUM_NC;
    config.quadhd_io_num = GPIO_NUM_NC;
    config.max_transfer_sz = static_cast<int>(row_bytes(wiring_.width)) * stripe_rows;
    return status_of(spi_bus_initialize(bus, &config, SPI_DMA_CH_AUTO), "the screen's SPI bus did not open");
}

Status St7789Panel::open_panel() {
    esp_lcd_panel_io_spi_config_t io = {};
    io.cs_gpio_num = pin(wiring_.select);
    io.dc_gpio_num = pin(wiring_.command);
    io.pclk_hz = wiring_.clock_hz;
    io.trans_queue_depth = 4;
    io.on_color_trans_done = on_sent;
    io.user_ctx = sent_;
    io.lcd_cmd_bits = 8;
    io.lcd_param_bits = 8;
    esp_err_t err = esp_lcd_new_panel_io_spi((esp_lcd_spi_bus_handle_t)bus, &io, &io_);
    if (err != ESP_OK) return status_of(err, "the screen did not open");
    esp_lcd_panel_dev_config_t panel = {};
    panel.reset_gpio_num = pin(wiring_.reset);
    panel.rgb_ele_order = LCD_RGB_ELEMENT_ORDER_RGB;
    panel.bits_per_pixel = 16;
    err = esp_lcd_new_panel_st7789(io_, &panel, &panel_);
    return status_of(err, "the screen's controller did not open");
}

Status St7789Panel::set_up() {
    esp_err_t err = esp_lcd_panel_reset(panel_);
    if (err == ESP_OK) err = esp_lcd_panel_init(panel_);
    if (err == ESP_OK) err = esp_lcd_panel_invert_color(panel_, wiring_.inverted);
    if (err == ESP_OK) err = esp_lcd_panel_swap_xy(panel_, wiring_.landscape);
    if (err == ESP_OK) err = esp_lcd_panel_mirror(panel_, wiring_.mirror_x, wiring_.mirror_y);
    if (err == ESP_OK) err = esp_lcd_panel_disp_on_off(panel_, true);
    return status_of(err, "the screen did not start");
}

Status St7789Panel::draw(int y, int rows, const std::uint8_t *dots) {
    for (int done = 0; done < rows; done += stripe_rows) {
        const int now = std::min(stripe_rows, rows - done);
        const Status status = send(y + done, now, dots + row_bytes(wiring_.width) * static_cast<std::size_t>(done));
        if (!status.ok()) return status;
    }
    return {};
}

Status St7789Panel::send(int y, int rows, const std::uint8_t *dots) {
    std::memcpy(stripe_, dots, row_bytes(wiring_.width) * static_cast<std::size_t>(rows));
    const esp_err_t err = esp_lcd_panel_draw_bitmap(panel_, 0, y, wiring_.width, y + rows, stripe_);
    if (err != ESP_OK) return status_of(err, "the screen took no picture");
    if (xSemaphoreTake(sent_, longest_stripe) != pdTRUE) return {Code::timeout, "the screen's SPI bus hangs"};
    return {};
}

}  // namespace fleet::esp
