// SPDX-License-Identifier: Apache-2.0
#include "fleet/version.hpp"

#include <array>
#include <cstdint>

namespace fleet {
namespace {

struct Parts {
    std::array<std::uint32_t, 6> number{};
    std::size_t count = 0;  // 0: not a version
};

// take_part reads the digits of one part and passes over its suffix.
bool take_part(std::string_view &text, std::uint32_t &number) {
    std::size_t digits = 0;
    number = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
        if (digits == 9) return false;
        number = number * 10 + static_cast<std::uint32_t>(text[digits++] - '0');
    }
    const std::size_t dot = text.find('.', digits);
    text.remove_prefix(dot == std::string_view::npos ? text.size() : dot);
    return digits > 0;
}

Parts parts_of(std::string_view text) {
    Parts parts;
    for (;;) {
        if (parts.count == parts.number.size()) return {};
        if (!take_part(text, parts.number[parts.count])) return {};
        parts.count++;
        if (text.empty()) return parts;
        text.remove_prefix(1);
    }
}

}  // namespace

bool is_version(std::string_view text) {
    return parts_of(text).count > 0;
}

bool newer_version(std::string_view offered, std::string_view current) {
    const Parts a = parts_of(offered);
    const Parts b = parts_of(current);
    if (a.count == 0 || b.count == 0) return false;
    for (std::size_t i = 0; i < a.count && i < b.count; i++) {
        if (a.number[i] != b.number[i]) return a.number[i] > b.number[i];
    }
    return a.count > b.count;
}

}  // namespace fleet
