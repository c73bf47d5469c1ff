// SPDX-License-Identifier: Apache-2.0
// Which URLs a device follows. Tools take URLs from messages: without a policy
// the devices of a house could be used to reach other machines in it.
#pragma once

#include "fleet/status.hpp"

#include <cstdint>
#include <string_view>

namespace fleet {

struct Url {
    bool https = false;
    std::string_view host;
    std::uint16_t port = 0;
    std::string_view path;  // begins with "/"; empty for none
};

// parse_url takes http and https with a plain host: no user, no IPv6 literal,
// no blanks or control characters.
Result<Url> parse_url(std::string_view text);
// parse_authority takes HOST or HOST:PORT.
Result<Url> parse_authority(std::string_view text);

struct UrlPolicy {
    bool allow_http = false;
    // Lists of hosts, separated by commas; empty allows none. "*" allows any, and
    // "*.example.org" all below that name.
    std::string_view hosts[3];
};

Status check_url(std::string_view url, const UrlPolicy &policy);

}  // namespace fleet
