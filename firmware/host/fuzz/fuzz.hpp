// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/span.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);

namespace fleet::fuzz {

inline std::string_view text(const std::uint8_t *data, std::size_t size) {
    return Bytes(data, size).text();
}

// require stops the fuzzer: a promise was broken.
inline void require(bool kept) {
    if (!kept) std::abort();
}

}  // namespace fleet::fuzz
