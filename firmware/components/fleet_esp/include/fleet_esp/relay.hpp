// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/status.hpp"

namespace fleet::esp {

// Relay is a contact that closes while its pin is high. It starts open.
class Relay {
public:
    Status start(int gpio);
    Status set(bool on);

private:
    int gpio_ = -1;
};

}  // namespace fleet::esp
