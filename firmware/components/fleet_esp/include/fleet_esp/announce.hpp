// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include <string>

namespace fleet::esp {

// host_name gives "fleet-1a2b3c", of the last three bytes of the MAC.
std::string host_name(const System &system);

// announce publishes the device on the local network, as _fleet._tcp. It offers no
// service there; the entry is for finding it.
Status announce(const System &system, const BoardInfo &board);

}  // namespace fleet::esp
