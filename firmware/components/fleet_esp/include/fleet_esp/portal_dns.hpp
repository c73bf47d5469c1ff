// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include "esp_netif.h"

#include <array>

namespace fleet::esp {

// PortalDns answers on the access point that every name has the device's address, which makes a
// phone show the setup page. The executor looks for queries: they are few, and a task would need
// a stack.
class PortalDns {
public:
    explicit PortalDns(Executor &executor) : executor_(executor) {}

    // start also has the access point's DHCP name this device as the name server.
    Status start(esp_netif_t *access_point);
    void stop();

private:
    Status open();
    void poll(unsigned run);
    bool answer_one();

    Executor &executor_;
    std::array<std::uint8_t, 4> address_ = {};
    int socket_ = -1;
    unsigned run_ = 0;  // counts starts, so that the polls of an earlier one end
};

}  // namespace fleet::esp
