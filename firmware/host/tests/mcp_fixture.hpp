// SPDX-License-Identifier: Apache-2.0
// An MCP server with a few tools, and the texts that it sent.
#pragma once

#include "fakes.hpp"
#include "fleet/mcp_server.hpp"

#include <string>
#include <vector>

namespace fleet::test {

struct McpFixture {
    explicit McpFixture(std::size_t page_bytes = 8000, const CallRates &rates = {0, 0, 0});

    // ask hands in a message and gives the one reply, or "" for silence.
    std::string ask(std::string_view message);
    // request wraps a payload into an envelope with an operator's scope.
    std::string request(std::string_view payload);
    // call calls a tool as an operator.
    std::string call(int id, std::string_view name, std::string_view arguments = "{}");

    FakeClock clock;
    FakeStore store;
    ToolRegistry tools;
    McpServer server;
    std::vector<std::string> sent;

    int runs = 0;           // of any tool
    std::int64_t seen = 0;  // the last integer argument
    std::string seen_text;
    Ticket ticket;  // of the last deferred call
};

// payload_of gives the payload of a message as written.
std::string payload_of(const std::string &message);

// error_of gives "code message" of an error reply, else "".
std::string error_of(const std::string &message);

}  // namespace fleet::test
