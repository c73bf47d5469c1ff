// SPDX-License-Identifier: Apache-2.0
// A step is a moment at which the state on disk has just changed. Tests and
// --fault kill=STEP end the process there, as a power cut would.
#pragma once

#include <functional>

namespace fleet::host {

void at_step(const char *name);
void on_step(std::function<void(const char *name)> seen);  // before threads start

}  // namespace fleet::host
