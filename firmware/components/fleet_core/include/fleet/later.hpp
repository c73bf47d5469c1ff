// SPDX-License-Identifier: Apache-2.0
// The executor as the core uses it: methods that run later, two words each.
#pragma once

#include "fleet/hook.hpp"
#include "fleet/ports.hpp"

#include <cstdint>

namespace fleet {

void post(const Machine &machine, Task task);
void post_after(const Machine &machine, std::uint32_t ms, Task task);
void work(const Machine &machine, Task task);

}  // namespace fleet
