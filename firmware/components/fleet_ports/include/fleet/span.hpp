// SPDX-License-Identifier: Apache-2.0
// Views of bytes: std::span is C++20, and the floor here is C++17.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

struct Bytes {
    const std::uint8_t *data = nullptr;
    std::size_t size = 0;

    constexpr Bytes() = default;
    constexpr Bytes(const std::uint8_t *d, std::size_t n) : data(d), size(n) {}
    explicit Bytes(std::string_view s) : data(reinterpret_cast<const std::uint8_t *>(s.data())), size(s.size()) {}
    [[nodiscard]] std::string_view text() const { return {reinterpret_cast<const char *>(data), size}; }
};

struct MutableBytes {
    std::uint8_t *data = nullptr;
    std::size_t size = 0;
};

}  // namespace fleet
