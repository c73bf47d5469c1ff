// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace fleet {

// encode_base64_group writes four characters for one to three bytes.
void encode_base64_group(Bytes bytes, char *out);

std::string encode_base64(Bytes bytes);

// decode_base64 takes the standard alphabet with padding, nothing around it,
// and gives the number of bytes written.
Result<std::size_t> decode_base64(std::string_view text, MutableBytes out);

}  // namespace fleet
