// SPDX-License-Identifier: Apache-2.0
// Looks at JSON text before a parser does: cJSON recurses and allocates as the
// text asks for it, so hostile text has to be bounded first. The scan itself
// uses neither heap nor recursion.
#pragma once

#include "fleet/status.hpp"

#include <cstddef>
#include <string_view>

namespace fleet {

struct JsonLimits {
    std::size_t bytes = 4096;
    std::size_t depth = 8;     // of nested objects and arrays, at most 32
    std::size_t values = 120;  // each becomes one cJSON node
};

// scan_json checks that text is one JSON value in strict form and within the
// limits. Stricter than the RFC in one point: U+0000 is refused, since it would
// end a C string early and let "self.reboot\u0000x" pass for another name.
Status scan_json(std::string_view text, const JsonLimits &limits);

// raw_member finds the value of a member of an object, as written, so that an
// id keeps all its digits. text must have passed scan_json. Empty if it is
// missing, or if its key is written with escapes.
std::string_view raw_member(std::string_view object, std::string_view key);

}  // namespace fleet
