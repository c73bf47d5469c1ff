// SPDX-License-Identifier: Apache-2.0
#include "fleet/utf8.hpp"

namespace fleet {
namespace {

constexpr unsigned byte(std::string_view text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
}

struct Lead {
    std::size_t length;
    unsigned low;  // bounds of the second byte: they shut out overlong forms and surrogates
    unsigned high;
};

constexpr Lead lead(unsigned b) {
    if (b >= 0xC2 && b <= 0xDF) return {2, 0x80, 0xBF};
    if (b >= 0xE0 && b <= 0xEF) return {3, b == 0xE0 ? 0xA0u : 0x80u, b == 0xED ? 0x9Fu : 0xBFu};
    if (b >= 0xF0 && b <= 0xF4) return {4, b == 0xF0 ? 0x90u : 0x80u, b == 0xF4 ? 0x8Fu : 0xBFu};
    return {0, 0, 0};
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
    if (text.empty()) return 0;
    if (byte(text, 0) < 0x80) return 1;
    const Lead l = lead(byte(text, 0));
    if (l.length == 0 || text.size() < l.length) return 0;
    if (byte(text, 1) < l.low || byte(text, 1) > l.high) return 0;
    for (std::size_t i = 2; i < l.length; i++) {
        if ((byte(text, i) & 0xC0) != 0x80) return 0;
    }
    return l.length;
}

}  // namespace fleet
