// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fleet {

// is_version reports whether text begins with up to six numbers joined by dots,
// each of at most nine digits; what follows the digits of a part is ignored.
bool is_version(std::string_view text);

// newer_version compares as stock devices do: number by number, and of equal
// ones the longer is newer. False if either is no version.
bool newer_version(std::string_view offered, std::string_view current);

}  // namespace fleet
