// SPDX-License-Identifier: Apache-2.0
#include "fleet/hex.hpp"

namespace fleet {
namespace {

int value_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string encode_hex(Bytes bytes) {
    constexpr char hex_digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size * 2);
    for (std::size_t i = 0; i < bytes.size; i++) {
        text += hex_digits[bytes.data[i] >> 4];
        text += hex_digits[bytes.data[i] & 15];
    }
    return text;
}

Status decode_hex(std::string_view text, MutableBytes out) {
    if (text.size() != out.size * 2) return {Code::invalid, "hex text has the wrong length"};
    for (std::size_t i = 0; i < out.size; i++) {
        const int high = value_of(text[2 * i]);
        const int low = value_of(text[2 * i + 1]);
        if (high < 0 || low < 0) return {Code::invalid, "not hex"};
        out.data[i] = static_cast<std::uint8_t>(high * 16 + low);
    }
    return {};
}

}  // namespace fleet
