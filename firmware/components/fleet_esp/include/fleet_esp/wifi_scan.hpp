// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet_esp/improv_service.hpp"

#include <vector>

namespace fleet::esp {

// scan_networks blocks for some seconds. It finds nothing while the station is
// connecting.
std::vector<FoundNetwork> scan_networks();

}  // namespace fleet::esp
