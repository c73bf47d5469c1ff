// SPDX-License-Identifier: Apache-2.0
#include "picture/codec.hpp"

#include "picture/jpeg.hpp"

#include <png.h>
#include <cstring>

namespace fleet::host {

namespace {

png_image png_of(const Canvas &canvas) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(canvas.width);
    image.height = static_cast<png_uint_32>(canvas.height);
    image.format = PNG_FORMAT_RGB;
    return image;
}

Result<Canvas> decode_png(Bytes file) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    Status failure{Code::corrupt, "the picture is no PNG that can be shown"};
    if (png_image_begin_read_from_memory(&image, file.data, file.size) == 0) return failure;
    if (image.width > max_side || image.height > max_side) {
        png_image_free(&image);
        return failure;
    }
    image.format = PNG_FORMAT_RGB;
    Canvas canvas(static_cast<int>(image.width), static_cast<int>(image.height));
    const png_color black{0, 0, 0};
    if (png_image_finish_read(&image, &black, canvas.dots.data(), 0, nullptr) == 0) return failure;
    return canvas;
}

}  // namespace

Result<std::string> encode_png(const Canvas &canvas) {
    png_image image = png_of(canvas);
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    std::string file(size, '\0');
    if (png_image_write_to_memory(&image, &file[0], &size, 0, canvas.dots.data(), 0, nullptr) == 0) {
        return Status{Code::no_memory, "the screen cannot be written as PNG"};
    }
    file.resize(size);
    return file;
}

std::string encode_ppm(const Canvas &canvas) {
    std::string file = "P6\n" + std::to_string(canvas.width) + " " + std::to_string(canvas.height) + "\n255\n";
    return file.append(reinterpret_cast<const char *>(canvas.dots.data()), canvas.dots.size());
}

Result<Canvas> decode_picture(Bytes file) {
    constexpr unsigned char png_magic[] = {0x89, 'P', 'N', 'G'};
    const bool is_png = file.size > sizeof png_magic && std::memcmp(file.data, png_magic, sizeof png_magic) == 0;
    return is_png ? decode_png(file) : decode_jpeg(file);
}

}  // namespace fleet::host
