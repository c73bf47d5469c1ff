// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-adf-libs a2523ce2 (esp_new_jpeg 0.6). See README.md.
#pragma once

#include "esp_jpeg_common.h"

typedef void *jpeg_dec_handle_t;

typedef struct {
    jpeg_pixel_format_t output_type;
} jpeg_dec_config_t;
#define DEFAULT_JPEG_DEC_CONFIG() {JPEG_PIXEL_FORMAT_RGB888}

typedef struct {
    uint16_t width;
    uint16_t height;
} jpeg_dec_header_info_t;

typedef struct {
    uint8_t *inbuf;
    int inbuf_len;
    int inbuf_remain;
    uint8_t *outbuf;
    int out_size;
} jpeg_dec_io_t;

extern "C" {
jpeg_error_t jpeg_dec_open(jpeg_dec_config_t *config, jpeg_dec_handle_t *handle);
jpeg_error_t jpeg_dec_parse_header(jpeg_dec_handle_t handle, jpeg_dec_io_t *io, jpeg_dec_header_info_t *info);
jpeg_error_t jpeg_dec_get_outbuf_len(jpeg_dec_handle_t handle, int *length);
jpeg_error_t jpeg_dec_process(jpeg_dec_handle_t handle, jpeg_dec_io_t *io);
jpeg_error_t jpeg_dec_close(jpeg_dec_handle_t handle);
}
