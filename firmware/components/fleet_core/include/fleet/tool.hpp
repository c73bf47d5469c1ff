// SPDX-License-Identifier: Apache-2.0
// What a tool is: a constant description in flash, a function, and a context.
#pragma once

#include "fleet/arguments.hpp"
#include "fleet/json_writer.hpp"
#include "fleet/property.hpp"
#include "fleet/tool_result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

enum class Audience : std::uint8_t { anyone, user };

// What a repeated delivery of the same request does.
enum class Repeat : std::uint8_t {
    reads,     // runs again: nothing changes by it
    acts,      // is answered from memory
    disrupts,  // the same, and over the restart that the call itself causes
};

// Ticket names a call that will be answered later.
struct Ticket {
    std::uint8_t slot = 0;
    std::uint16_t turn = 0;
};

class McpServer;

// Call is one tools/call whose arguments have been checked.
struct Call {
    const Arguments &args;
    ToolResult &result;
    bool operator_scope = false;

    // defer keeps the call open: its answer comes by McpServer::finish. Ask
    // before starting the work; busy when too many calls are open.
    Result<Ticket> defer();

    McpServer &server;
    bool deferred = false;
    Ticket ticket;
};

// A tool writes call.result and returns ok, or returns why it failed.
using ToolRun = Status (*)(void *context, Call &call);

struct ToolInfo {
    const char *name = "";
    const char *description = "";
    const Property *properties = nullptr;
    std::size_t property_count = 0;
    Audience audience = Audience::anyone;
    Repeat repeat = Repeat::acts;

    constexpr ToolInfo() = default;
    constexpr ToolInfo(const char *n, const char *d) : name(n), description(d) {}

    template <std::size_t N>
    constexpr ToolInfo With(const Property (&list)[N]) const {
        static_assert(N <= max_properties, "too many properties");
        ToolInfo t = *this;
        t.properties = list;
        t.property_count = N;
        return t;
    }
    constexpr ToolInfo UserOnly() const {
        ToolInfo t = *this;
        t.audience = Audience::user;
        return t;
    }
    constexpr ToolInfo Repeats(Repeat r) const {
        ToolInfo t = *this;
        t.repeat = r;
        return t;
    }
};

// write_tool writes the object that tools/list shows.
void write_tool(JsonWriter &w, const ToolInfo &info);

struct Tool {
    const ToolInfo *info = nullptr;
    ToolRun run = nullptr;
    void *context = nullptr;
};

// ToolRegistry lists tools in the order of their adding.
class ToolRegistry {
public:
    static constexpr std::size_t max_tools = 40;
    static constexpr std::size_t max_name = 128;
    static constexpr std::size_t max_tool_bytes = 2048;  // so that a page always has room for one

    // info has to outlive the registry. Refuses a name twice, and a tool whose
    // description is longer than max_tool_bytes.
    Status add(const ToolInfo &info, ToolRun run, void *context);
    const Tool *find(std::string_view name) const;

    const Tool *begin() const { return tools_.data(); }
    const Tool *end() const { return tools_.data() + count_; }
    std::size_t size() const { return count_; }

private:
    std::array<Tool, max_tools> tools_;
    std::size_t count_ = 0;
};

}  // namespace fleet
