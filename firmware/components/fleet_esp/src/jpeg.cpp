// SPDX-License-Identifier: Apache-2.0
#include "jpeg.hpp"

#include "esp_heap_caps.h"
#include "esp_jpeg_dec.h"
#include "esp_jpeg_enc.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace fleet::esp {

namespace {

constexpr int largest_side = 2048;
constexpr int largest_dots = 1024 * 1024;  // two megabytes of PSRAM

struct FreeHeap {
    void operator()(std::uint8_t *p) const { heap_caps_free(p); }
};
struct FreeAligned {
    void operator()(std::uint8_t *p) const { jpeg_free_align(p); }
};
using Buffer = std::unique_ptr<std::uint8_t, FreeHeap>;
using AlignedBuffer = std::unique_ptr<std::uint8_t, FreeAligned>;

class Decoder {
public:
    Decoder() {
        jpeg_dec_config_t config = DEFAULT_JPEG_DEC_CONFIG();
        config.output_type = JPEG_PIXEL_FORMAT_RGB565_BE;
        if (jpeg_dec_open(&config, &handle_) != JPEG_ERR_OK) handle_ = nullptr;
    }
    ~Decoder() {
        if (handle_ != nullptr) jpeg_dec_close(handle_);
    }
    Decoder(const Decoder &) = delete;
    Decoder &operator=(const Decoder &) = delete;
    jpeg_dec_handle_t handle() const { return handle_; }

private:
    jpeg_dec_handle_t handle_ = nullptr;
};

Status check_size(const jpeg_dec_header_info_t &info) {
    if (info.width == 0 || info.height == 0) return {Code::corrupt, "the picture has no dots"};
    if (info.width > largest_side || info.height > largest_side || info.width * info.height > largest_dots) {
        return {Code::no_memory, "the picture is too large for this device"};
    }
    return {};
}

}  // namespace

Status encode_jpeg(const Frame &frame, int quality, FunctionRef<Status(Bytes)> sink) {
    jpeg_enc_config_t config = DEFAULT_JPEG_ENC_CONFIG();
    config.width = frame.width();
    config.height = frame.height();
    config.src_type = JPEG_PIXEL_FORMAT_RGB565_BE;
    config.subsampling = JPEG_SUBSAMPLE_420;
    config.quality = static_cast<std::uint8_t>(std::clamp(quality, 1, 100));
    jpeg_enc_handle_t encoder = nullptr;
    if (jpeg_enc_open(&config, &encoder) != JPEG_ERR_OK) return {Code::no_memory, "the JPEG encoder did not open"};
    const auto capacity = static_cast<int>(frame.bytes() / 2 + 4096);  // far more than a screen's picture takes
    const Buffer out(
        static_cast<std::uint8_t *>(heap_caps_malloc(static_cast<std::size_t>(capacity), MALLOC_CAP_SPIRAM)));
    int size = 0;
    const jpeg_error_t err = out == nullptr ? JPEG_ERR_NO_MEM
                                            : jpeg_enc_process(encoder, frame.dots(), static_cast<int>(frame.bytes()),
                                                               out.get(), capacity, &size);
    jpeg_enc_close(encoder);
    if (err != JPEG_ERR_OK || size <= 0) return {Code::no_memory, "the picture was not encoded"};
    return sink({out.get(), static_cast<std::size_t>(size)});
}

Status decode_jpeg(Bytes file, FunctionRef<void(const Frame &)> use) {
    const Decoder decoder;
    if (decoder.handle() == nullptr) return {Code::no_memory, "the JPEG decoder did not open"};
    jpeg_dec_io_t io = {};
    io.inbuf = const_cast<std::uint8_t *>(file.data);  // only read
    io.inbuf_len = static_cast<int>(file.size);
    jpeg_dec_header_info_t info = {};
    if (jpeg_dec_parse_header(decoder.handle(), &io, &info) != JPEG_ERR_OK) return {Code::corrupt, "this is no JPEG"};
    if (const Status status = check_size(info); !status.ok()) return status;
    int size = 0;
    if (jpeg_dec_get_outbuf_len(decoder.handle(), &size) != JPEG_ERR_OK || size < info.width * info.height * 2) {
        return {Code::corrupt, "this JPEG is of an unknown kind"};
    }
    const AlignedBuffer out(static_cast<std::uint8_t *>(jpeg_calloc_align(static_cast<std::size_t>(size), 16)));
    if (out == nullptr) return {Code::no_memory, "no memory for the picture"};
    io.outbuf = out.get();
    if (jpeg_dec_process(decoder.handle(), &io) != JPEG_ERR_OK) return {Code::corrupt, "the JPEG is damaged"};
    use(Frame(out.get(), info.width, info.height));
    return {};
}

}  // namespace fleet::esp
