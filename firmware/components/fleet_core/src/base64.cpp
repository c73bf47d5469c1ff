// SPDX-License-Identifier: Apache-2.0
#include "fleet/base64.hpp"

#include <cstdint>

namespace fleet {
namespace {

constexpr char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr Status not_base64{Code::invalid, "not base64"};

int value_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

// decode_group gives the number of bytes in a group of four, or 0.
std::size_t decode_group(std::string_view group, bool last, std::uint8_t *out) {
    const std::size_t pads = group[3] != '=' ? 0 : group[2] != '=' ? 1 : 2;
    if (pads > 0 && !last) return 0;
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; i++) {
        const int v = i >= 4 - pads ? 0 : value_of(group[i]);
        if (v < 0) return 0;
        bits = bits << 6 | static_cast<std::uint32_t>(v);
    }
    for (std::size_t i = 0; i < 3; i++)
        out[i] = static_cast<std::uint8_t>(bits >> (16 - 8 * i));
    return 3 - pads;
}

}  // namespace

void encode_base64_group(Bytes bytes, char *out) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; i++)
        bits = bits << 8 | (i < bytes.size ? bytes.data[i] : 0u);
    for (std::size_t i = 0; i < 4; i++) {
        out[i] = i <= bytes.size ? alphabet[bits >> (18 - 6 * i) & 63] : '=';
    }
}

std::string encode_base64(Bytes bytes) {
    std::string text((bytes.size + 2) / 3 * 4, '=');
    for (std::size_t at = 0; at < bytes.size; at += 3) {
        const std::size_t n = bytes.size - at < 3 ? bytes.size - at : 3;
        encode_base64_group({bytes.data + at, n}, &text[at / 3 * 4]);
    }
    return text;
}

Result<std::size_t> decode_base64(std::string_view text, MutableBytes out) {
    if (text.size() % 4 != 0) return not_base64;
    std::size_t size = 0;
    for (std::size_t at = 0; at < text.size(); at += 4) {
        std::uint8_t group[3];
        const std::size_t n = decode_group(text.substr(at, 4), at + 4 == text.size(), group);
        if (n == 0) return not_base64;
        if (n > out.size - size) return Status{Code::no_space, "base64 is longer than expected"};
        for (std::size_t i = 0; i < n; i++)
            out.data[size++] = group[i];
    }
    return size;
}

}  // namespace fleet
