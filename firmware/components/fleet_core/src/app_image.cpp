// SPDX-License-Identifier: Apache-2.0
#include "fleet/app_image.hpp"

#include "fleet/hex.hpp"

namespace fleet {
namespace {

std::uint32_t u32(const std::uint8_t *p) {
    return p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}

// A text field has 32 bytes, or ends with the first NUL.
void take(const std::uint8_t *p, std::string &into) {
    std::size_t n = 0;
    while (n < 32 && p[n] != 0)
        n++;
    into.assign(reinterpret_cast<const char *>(p), n);
}

}  // namespace

Status parse_image_head(Bytes bytes, ImageHead &head) {
    if (bytes.size < image_head_bytes) return {Code::corrupt, "the image ends inside its header"};
    const std::uint8_t *p = bytes.data;
    if (p[0] != 0xE9) return {Code::corrupt, "not an app image: wrong magic"};
    if (p[1] < 1 || p[1] > 16) return {Code::corrupt, "the image has an impossible number of segments"};
    if (u32(p + 32) != 0xABCD5432) return {Code::corrupt, "not an app image: no app description"};
    head.segments = p[1];
    head.chip = static_cast<std::uint16_t>(p[12] | p[13] << 8);
    head.hash_appended = p[23] == 1;
    head.secure_version = u32(p + 36);
    take(p + 48, head.version);
    take(p + 80, head.project);
    head.elf_sha256 = encode_hex({p + 176, 32});
    return {};
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
