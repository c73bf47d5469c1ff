// SPDX-License-Identifier: Apache-2.0
// The page that a phone sees on the device's access point: Wi-Fi and the fleet's
// address, without an app. No sockets here: a server hands in what it read.
#pragma once

#include "fleet/hook.hpp"
#include "fleet/status.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace fleet {

struct PortalRequest {
    std::string_view method;
    std::string_view path;  // with its query
    std::string_view host;  // the header, "" without one
    std::string_view body;
};

struct PortalAnswer {
    int status = 200;
    std::string location;  // of a redirection
    std::string body;      // HTML, UTF-8
};

struct PortalInput {
    std::string ssid;
    std::string password;
    std::string fleet;  // URL of the boot poll; "" leaves the one that is there
};

class Portal {
public:
    static constexpr std::size_t max_body = 1024;
    static constexpr int max_code_attempts = 10;

    // address is the device's own, as "192.168.4.1". With a code, no input is accepted
    // without it; "" accepts any.
    Portal(std::string_view address, std::string_view code, std::string_view fleet)
        : address_(address), code_(code), fleet_(fleet) {}

    PortalAnswer handle(const PortalRequest &request);

    std::vector<std::string> networks;  // that the device sees, to choose from
    std::string notice;                 // how the attempt before ended; the page shows it
    // use starts an attempt later: the answer leaves first. What it refuses is shown.
    Hook<Status(const PortalInput &)> use;

private:
    PortalAnswer page(int status, std::string_view message) const;
    PortalAnswer submit(std::string_view body);
    const char *problem(const PortalInput &input, std::string_view code);

    std::string address_, code_, fleet_;
    int wrong_codes_ = 0;
};

}  // namespace fleet
