// SPDX-License-Identifier: Apache-2.0
#include "fleet/app_image.hpp"

#include "fleet/hex.hpp"

#include <cstring>

namespace fleet {
namespace {

std::uint32_t u32(const std::uint8_t *p) {
    return p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}

// A text field ends with the first NUL or with the field.
std::string field(const std::uint8_t *p, std::size_t size) {
    const void *end = std::memchr(p, 0, size);
    const std::size_t n = end ? static_cast<std::size_t>(static_cast<const std::uint8_t *>(end) - p) : size;
    return {reinterpret_cast<const char *>(p), n};
}

}  // namespace

Result<ImageHead> parse_image_head(Bytes bytes) {
    if (bytes.size < kImageHead) return Status{Code::corrupt, "the image ends inside its header"};
    const std::uint8_t *p = bytes.data;
    if (p[0] != 0xE9) return Status{Code::corrupt, "not an app image: wrong magic"};
    if (p[1] < 1 || p[1] > 16) return Status{Code::corrupt, "the image has an impossible number of segments"};
    if (u32(p + 32) != 0xABCD5432) return Status{Code::corrupt, "not an app image: no app description"};
    ImageHead head;
    head.segments = p[1];
    head.chip = static_cast<std::uint16_t>(p[12] | p[13] << 8);
    head.hash_appended = p[23] == 1;
    head.secure_version = u32(p + 36);
    head.version = field(p + 48, 32);
    head.project = field(p + 80, 32);
    head.elf_sha256 = encode_hex({p + 176, 32});
    return head;
}

Status check_target(const ImageHead &head, const ImageTarget &target) {
    if (head.chip != target.chip) return {Code::wrong_target, "the image is for another chip"};
    if (head.project != target.project) return {Code::wrong_target, "the image is of another project"};
    if (head.secure_version < target.secure_version) {
        return {Code::wrong_target, "the image has an older secure version"};
    }
    return {};
}

}  // namespace fleet
