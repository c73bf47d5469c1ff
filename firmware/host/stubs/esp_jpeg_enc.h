// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-adf-libs a2523ce2 (esp_new_jpeg 0.6). See README.md.
#pragma once

#include "esp_jpeg_common.h"

typedef void *jpeg_enc_handle_t;

typedef struct {
    int width;
    int height;
    jpeg_pixel_format_t src_type;
    jpeg_subsampling_t subsampling;
    uint8_t quality;
    bool task_enable;
} jpeg_enc_config_t;
#define DEFAULT_JPEG_ENC_CONFIG() {320, 240, JPEG_PIXEL_FORMAT_RGB888, JPEG_SUBSAMPLE_420, 40, false}

extern "C" {
jpeg_error_t jpeg_enc_open(jpeg_enc_config_t *config, jpeg_enc_handle_t *handle);
jpeg_error_t jpeg_enc_process(const jpeg_enc_handle_t handle, const uint8_t *in, int in_size, uint8_t *out,
                              int out_size, int *written);
jpeg_error_t jpeg_enc_close(jpeg_enc_handle_t handle);
}
