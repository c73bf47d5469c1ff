// SPDX-License-Identifier: Apache-2.0
#include "picture/jpeg.hpp"

#include "picture/codec.hpp"

#include <jpeglib.h>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>

namespace fleet::host {

namespace {

// libjpeg ends by a jump; nothing with a destructor may lie between.
struct Trap {
    jpeg_error_mgr manager{};
    std::jmp_buf back{};

    static void leap(j_common_ptr info) { std::longjmp(reinterpret_cast<Trap *>(info->err)->back, 1); }
    static void hush(j_common_ptr) {}

    jpeg_error_mgr *arm() {
        jpeg_std_error(&manager);
        manager.error_exit = leap;
        manager.output_message = hush;
        return &manager;
    }
};

void compress_rows(jpeg_compress_struct &info, const Canvas &canvas, int quality) {
    info.image_width = static_cast<JDIMENSION>(canvas.width);
    info.image_height = static_cast<JDIMENSION>(canvas.height);
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        JSAMPROW row = const_cast<JSAMPROW>(canvas.at(0, static_cast<int>(info.next_scanline)));
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
}

bool compress(const Canvas &canvas, int quality, unsigned char **out, unsigned long *size) {
    jpeg_compress_struct info{};
    Trap trap;
    info.err = trap.arm();
    if (setjmp(trap.back) != 0) {
        jpeg_destroy_compress(&info);
        return false;
    }
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, out, size);
    compress_rows(info, canvas, quality);
    jpeg_destroy_compress(&info);
    return true;
}

void decompress_rows(jpeg_decompress_struct &info, Canvas &canvas) {
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    canvas.width = static_cast<int>(info.output_width);
    canvas.height = static_cast<int>(info.output_height);
    canvas.dots.assign(std::size_t{info.output_width} * info.output_height * 3, 0);
    while (info.output_scanline < info.output_height) {
        JSAMPROW row = canvas.at(0, static_cast<int>(info.output_scanline));
        jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
}

bool decompress(Bytes file, Canvas &canvas) {
    jpeg_decompress_struct info{};
    Trap trap;
    info.err = trap.arm();
    if (setjmp(trap.back) != 0) {
        jpeg_destroy_decompress(&info);
        return false;
    }
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, file.data, static_cast<unsigned long>(file.size));
    jpeg_read_header(&info, TRUE);
    const bool fits = info.image_width <= max_side && info.image_height <= max_side;
    if (fits) decompress_rows(info, canvas);
    jpeg_destroy_decompress(&info);
    return fits;
}

}  // namespace

Result<std::string> encode_jpeg(const Canvas &canvas, int quality) {
    unsigned char *out = nullptr;
    unsigned long size = 0;
    const bool done = compress(canvas, quality, &out, &size);
    std::string file(reinterpret_cast<const char *>(out), done ? size : 0);
    std::free(out);
    if (!done) return Status{Code::no_memory, "the screen cannot be written as JPEG"};
    return file;
}

Result<Canvas> decode_jpeg(Bytes file) {
    Canvas canvas;
    if (!decompress(file, canvas)) return Status{Code::corrupt, "the picture is no JPEG that can be shown"};
    return canvas;
}

}  // namespace fleet::host
