// SPDX-License-Identifier: Apache-2.0
// UTF-8 at the border: device text meets SQL and JSON, which take no other.
#pragma once

#include <cstddef>
#include <string_view>

namespace fleet {

// utf8_length gives the length of the character that text begins with, or 0 if
// its bytes are not one: truncated, overlong, a surrogate, past U+10FFFF.
std::size_t utf8_length(std::string_view text);

}  // namespace fleet
