// SPDX-License-Identifier: Apache-2.0
#include "boot/esp_image.hpp"

#include "ports/file_io.hpp"
#include "ports/openssl_crypto.hpp"

#include <algorithm>
#include <cstring>

namespace fleet::host {

namespace {

constexpr std::uint32_t descriptor_magic = 0xABCD5432;
constexpr std::uint32_t max_segment = 16u << 20;
constexpr std::uint32_t max_payload = 16 * 1024;
constexpr std::uint8_t checksum_seed = 0xEF;

std::uint32_t u32(const std::uint8_t *p) {
    return std::uint32_t{p[0]} | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}
std::uint16_t u16(const std::uint8_t *p) {
    return static_cast<std::uint16_t>(p[0] | p[1] << 8);
}

std::string text(const std::uint8_t *p, std::size_t size) {
    const char *s = reinterpret_cast<const char *>(p);
    return {s, strnlen(s, size)};
}

AppInfo describe(const std::uint8_t *d) {
    AppInfo app;
    app.secure_version = u32(d + 4);
    app.version = text(d + 16, 32);
    app.project = text(d + 48, 32);
    app.compile_time = text(d + 96, 16) + "T" + text(d + 80, 16) + "Z";
    app.idf_version = text(d + 112, 32);
    app.elf_sha256 = hex_of(d + 144, 32);
    return app;
}

// Walk reads an image once from the front, summing as it goes.
class Walk {
public:
    Walk(int fd, std::uint32_t limit) : fd_(fd), limit_(limit), hash_(OpensslCrypto().sha256()) {}

    std::uint32_t at() const { return at_; }
    std::uint8_t checksum() const { return checksum_; }
    Digest digest() { return hash_->finish(); }

    Status take(std::uint8_t *into, std::uint32_t size, bool is_data) {
        if (size > limit_ - at_) return {Code::corrupt, "the image ends early"};
        const Status read = read_all(fd_, {into, size}, at_);
        if (!read.ok()) return read;
        hash_->update({into, size});
        if (is_data) {
            for (std::uint32_t i = 0; i < size; ++i)
                checksum_ = static_cast<std::uint8_t>(checksum_ ^ into[i]);
        }
        at_ += size;
        return {};
    }

    Status skip(std::uint32_t size, bool is_data) {
        std::uint8_t buffer[4096];
        while (size > 0) {
            const std::uint32_t n = std::min<std::uint32_t>(size, sizeof buffer);
            const Status taken = take(buffer, n, is_data);
            if (!taken.ok()) return taken;
            size -= n;
        }
        return {};
    }

private:
    int fd_;
    std::uint32_t limit_, at_ = 0;
    std::uint8_t checksum_ = checksum_seed;
    std::unique_ptr<Sha256> hash_;
};

Status walk_segment(Walk &walk) {
    std::uint8_t header[segment_header_size];
    const Status taken = walk.take(header, sizeof header, false);
    if (!taken.ok()) return taken;
    const std::uint32_t size = u32(header + 4);
    if (size >= max_segment || size % 4 != 0) return {Code::corrupt, "a segment's length makes no sense"};
    return walk.skip(size, true);
}

// The checksum is the last byte of the 16-byte block after the last segment.
Status check_sum(Walk &walk) {
    const std::uint8_t expected = walk.checksum();
    std::uint8_t block[16];
    const std::uint32_t rest = 16 - walk.at() % 16;
    const Status taken = walk.take(block, rest, false);
    if (!taken.ok()) return taken;
    return block[rest - 1] == expected ? Status{} : Status{Code::corrupt, "the image's checksum does not match"};
}

Status check_hash(Walk &walk) {
    const Digest expected = walk.digest();
    Digest stored;
    const Status taken = walk.take(stored.data(), sizeof stored, false);
    if (!taken.ok()) return taken;
    return stored == expected ? Status{} : Status{Code::corrupt, "the image's SHA-256 does not match"};
}

// The payload is text that begins with '{', or an ELF file, directly behind
// the description.
Status read_payload(int fd, std::uint32_t first_segment, EspImage &image) {
    if (first_segment <= descriptor_size) return {};
    std::string bytes(std::min(first_segment - descriptor_size, max_payload), '\0');
    const Status read = read_all(fd, {reinterpret_cast<std::uint8_t *>(&bytes[0]), bytes.size()}, payload_offset);
    if (read.ok() && bytes[0] == '{') image.payload = bytes.substr(0, bytes.find('\0'));
    if (read.ok() && bytes.compare(0, 4,
                                   "\x7f"
                                   "ELF") == 0)
        image.elf_size = first_segment - descriptor_size;
    return read;
}

}  // namespace

Result<EspImage> read_image(int fd, std::uint32_t size, std::uint16_t chip_id) {
    std::uint8_t head[payload_offset];
    if (size < sizeof head) return Status{Code::corrupt, "the image is shorter than its description"};
    const Status read = read_all(fd, {head, sizeof head}, 0);
    if (!read.ok()) return read;
    if (head[0] != 0xE9) return Status{Code::corrupt, "the bytes are no application image"};
    if (head[1] < 1 || head[1] > 16) return Status{Code::corrupt, "an image has 1 to 16 segments"};
    if (u32(head + descriptor_offset) != descriptor_magic) {
        return Status{Code::corrupt, "the image has no application description"};
    }
    EspImage image;
    image.chip_id = u16(head + 12);
    if (image.chip_id != chip_id) return Status{Code::wrong_target, "the image is for another chip"};
    image.app = describe(head + descriptor_offset);

    Walk walk(fd, size);
    Status status = walk.skip(image_header_size, false);
    for (int i = 0; status.ok() && i < head[1]; ++i)
        status = walk_segment(walk);
    if (status.ok()) status = check_sum(walk);
    if (status.ok() && head[23] != 0) status = check_hash(walk);
    if (status.ok()) status = read_payload(fd, u32(head + image_header_size + 4), image);
    if (!status.ok()) return status;
    image.length = walk.at();
    return image;
}

}  // namespace fleet::host
