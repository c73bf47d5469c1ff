// SPDX-License-Identifier: Apache-2.0
// The panel and the JPEG codec, whose files are the dots themselves.
#include "fakes.hpp"

#include "esp_jpeg_dec.h"
#include "esp_jpeg_enc.h"
#include "esp_lcd_panel_io.h"
#include "esp_lcd_panel_ops.h"
#include "esp_lcd_panel_vendor.h"

#include <cstdlib>
#include <cstring>

namespace fake::screen {
std::vector<std::uint8_t> dots;
int width = 320, height = 240;
esp_err_t result = ESP_OK;
bool hangs = false;
std::uint16_t jpeg_width = 0, jpeg_height = 0;
bool bad_jpeg = false;
int live_codecs = 0;
esp_lcd_panel_io_spi_config_t io = {};
}  // namespace fake::screen

using namespace fake::screen;

struct esp_lcd_panel_io_t {};
struct esp_lcd_panel_t {};

extern "C" {

esp_err_t spi_bus_initialize(spi_host_device_t, const spi_bus_config_t *, spi_dma_chan_t) {
    return result;
}
esp_err_t esp_lcd_new_panel_io_spi(esp_lcd_spi_bus_handle_t, const esp_lcd_panel_io_spi_config_t *config,
                                   esp_lcd_panel_io_handle_t *handle) {
    static esp_lcd_panel_io_t one;
    io = *config;
    *handle = &one;
    return result;
}
esp_err_t esp_lcd_new_panel_st7789(const esp_lcd_panel_io_handle_t, const esp_lcd_panel_dev_config_t *,
                                   esp_lcd_panel_handle_t *panel) {
    static esp_lcd_panel_t one;
    *panel = &one;
    return result;
}
esp_err_t esp_lcd_panel_reset(esp_lcd_panel_handle_t) {
    return result;
}
esp_err_t esp_lcd_panel_init(esp_lcd_panel_handle_t) {
    return result;
}
esp_err_t esp_lcd_panel_mirror(esp_lcd_panel_handle_t, bool, bool) {
    return result;
}
esp_err_t esp_lcd_panel_swap_xy(esp_lcd_panel_handle_t, bool) {
    return result;
}
esp_err_t esp_lcd_panel_invert_color(esp_lcd_panel_handle_t, bool) {
    return result;
}
esp_err_t esp_lcd_panel_disp_on_off(esp_lcd_panel_handle_t, bool) {
    return result;
}
esp_err_t esp_lcd_panel_draw_bitmap(esp_lcd_panel_handle_t, int, int y, int, int y_end, const void *data) {
    if (result != ESP_OK) return result;
    const std::size_t row = static_cast<std::size_t>(width) * 2;
    dots.resize(row * static_cast<std::size_t>(height));
    std::memcpy(&dots[row * static_cast<std::size_t>(y)], data, row * static_cast<std::size_t>(y_end - y));
    if (!hangs) io.on_color_trans_done(nullptr, nullptr, io.user_ctx);
    return ESP_OK;
}

void *jpeg_calloc_align(size_t size, int) {
    return std::calloc(1, size);
}
void jpeg_free_align(void *data) {
    std::free(data);
}
jpeg_error_t jpeg_enc_open(jpeg_enc_config_t *config, jpeg_enc_handle_t *handle) {
    ++live_codecs;
    *handle = new int(config->quality);
    return JPEG_ERR_OK;
}
jpeg_error_t jpeg_enc_process(const jpeg_enc_handle_t handle, const uint8_t *in, int, uint8_t *out, int, int *written) {
    if (reinterpret_cast<std::uintptr_t>(in) % 16 != 0) return JPEG_ERR_INVALID_PARAM;
    out[0] = static_cast<uint8_t>(*static_cast<int *>(handle));
    out[1] = in[0];
    out[2] = in[1];
    *written = 3;
    return bad_jpeg ? JPEG_ERR_FAIL : JPEG_ERR_OK;
}
jpeg_error_t jpeg_enc_close(jpeg_enc_handle_t handle) {
    delete static_cast<int *>(handle);
    --live_codecs;
    return JPEG_ERR_OK;
}
jpeg_error_t jpeg_dec_open(jpeg_dec_config_t *, jpeg_dec_handle_t *handle) {
    ++live_codecs;
    *handle = &live_codecs;
    return JPEG_ERR_OK;
}
jpeg_error_t jpeg_dec_parse_header(jpeg_dec_handle_t, jpeg_dec_io_t *, jpeg_dec_header_info_t *info) {
    if (bad_jpeg) return JPEG_ERR_FAIL;
    *info = {jpeg_width, jpeg_height};
    return JPEG_ERR_OK;
}
jpeg_error_t jpeg_dec_get_outbuf_len(jpeg_dec_handle_t, int *length) {
    *length = jpeg_width * jpeg_height * 2;
    return JPEG_ERR_OK;
}
jpeg_error_t jpeg_dec_process(jpeg_dec_handle_t, jpeg_dec_io_t *jpeg) {
    std::memset(jpeg->outbuf, jpeg->inbuf[0], static_cast<std::size_t>(jpeg_width) * jpeg_height * 2);
    return JPEG_ERR_OK;
}
jpeg_error_t jpeg_dec_close(jpeg_dec_handle_t) {
    --live_codecs;
    return JPEG_ERR_OK;
}
}
