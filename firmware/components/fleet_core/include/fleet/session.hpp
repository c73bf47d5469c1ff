// SPDX-License-Identifier: Apache-2.0
// The messages from the server that stock devices know, each to where it goes.
#pragma once

#include "fleet/mcp_server.hpp"

#include <string_view>

namespace fleet {

class Session {
public:
    explicit Session(McpServer &server, const JsonLimits &limits = {}) : server_(server), limits_(limits) {}

    void receive(Bytes message);

    // An audio channel as stock servers open it. There is no audio here: what
    // counts is the session id that every message then carries.
    bool channel_open() const { return channel_open_; }

    Hook<void()> on_message;  // any message: the way to the server and back works
    Hook<void()> on_reboot;   // {"type":"system","command":"reboot"}
    Hook<void(std::string_view status, std::string_view message)> on_alert;

private:
    void hello(const Envelope &envelope);
    void goodbye(const Envelope &envelope);
    void system(const Envelope &envelope);
    void alert(const Envelope &envelope);

    McpServer &server_;
    JsonLimits limits_;
    bool channel_open_ = false;
};

}  // namespace fleet
