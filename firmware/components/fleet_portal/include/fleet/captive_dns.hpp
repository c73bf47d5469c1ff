// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/span.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace fleet {

constexpr std::size_t max_dns_message = 512;  // a message over UDP

// answer_dns says that every name has this address: a phone then finds the device's page
// where it looks whether there is an Internet. It gives the answer's size, or 0 for what
// deserves no answer. out may not be query itself.
std::size_t answer_dns(Bytes query, const std::array<std::uint8_t, 4> &address, MutableBytes out);

}  // namespace fleet
