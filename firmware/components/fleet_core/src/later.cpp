// SPDX-License-Identifier: Apache-2.0
#include "fleet/later.hpp"

namespace fleet {

void post(const Machine &machine, Task task) {
    machine.executor->post(task);
}

void post_after(const Machine &machine, std::uint32_t ms, Task task) {
    machine.executor->post_after(ms, task);
}

void work(const Machine &machine, Task task) {
    machine.executor->work(task);
}

}  // namespace fleet
