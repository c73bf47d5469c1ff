// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <string>
#include <string_view>

namespace fleet {

std::string encode_hex(Bytes bytes);  // lower case

// decode_hex fills out exactly.
Status decode_hex(std::string_view text, MutableBytes out);

}  // namespace fleet
