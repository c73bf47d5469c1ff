// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-adf-libs 692ae7d7 (esp_new_jpeg, 2025). See README.md.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum {
    JPEG_ERR_OK = 0,
    JPEG_ERR_FAIL = -1,
    JPEG_ERR_NO_MEM = -2,
    JPEG_ERR_INVALID_PARAM = -4,
} jpeg_error_t;
typedef enum { JPEG_PIXEL_FORMAT_RGB888, JPEG_PIXEL_FORMAT_RGB565_BE, JPEG_PIXEL_FORMAT_RGB565_LE } jpeg_pixel_format_t;
typedef enum { JPEG_SUBSAMPLE_GRAY, JPEG_SUBSAMPLE_444, JPEG_SUBSAMPLE_422, JPEG_SUBSAMPLE_420 } jpeg_subsampling_t;

extern "C" void *jpeg_calloc_align(size_t size, int align);
extern "C" void jpeg_free_align(void *data);
