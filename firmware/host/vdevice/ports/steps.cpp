// SPDX-License-Identifier: Apache-2.0
#include "ports/steps.hpp"

#include <utility>

namespace fleet::host {

namespace {
std::function<void(const char *)> observer;
}

void at_step(const char *name) {
    if (observer) observer(name);
}

void on_step(std::function<void(const char *)> seen) {
    observer = std::move(seen);
}

}  // namespace fleet::host
