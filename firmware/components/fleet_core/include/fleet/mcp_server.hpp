// SPDX-License-Identifier: Apache-2.0
// The MCP server of a device: initialize, ping, tools/list, tools/call.
//
// It speaks as stock devices do, and better where they fall short: every bad
// request with an id is answered, errors carry JSON-RPC codes, ids are echoed
// as written, user-only tools need an operator's scope to be called.
#pragma once

#include "fleet/envelope.hpp"
#include "fleet/ports.hpp"
#include "fleet/rate_limit.hpp"
#include "fleet/request_ring.hpp"
#include "fleet/tool.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace fleet {

enum class RpcError : std::int16_t {
    parse = -32700,
    invalid_request = -32600,
    method_not_found = -32601,
    invalid_params = -32602,
    internal = -32603,
    not_allowed = -32001,
    too_many = -32002,  // calls; later ones are taken again
};

struct McpOptions {
    const char *name = "";     // serverInfo: the board
    const char *version = "";  // of the firmware
    // How long a page of tools/list may be, 2560 at least. Ties to the MQTT
    // buffer: a message is at most 512 bytes longer.
    std::size_t page_bytes = 3072;
    CallRates rates;
};

class McpServer {
public:
    using Send = Hook<void(std::string_view message)>;
    static constexpr std::size_t max_id = 48;   // of an id as written
    static constexpr std::size_t max_open = 4;  // calls to be answered later
    static constexpr std::size_t max_notice = 1536;

    // tools has to outlive the server. store and clock may be null; without them
    // a disruptive call is not remembered over a restart.
    McpServer(const ToolRegistry &tools, const McpOptions &options, KvStore *store, const Clock *clock);

    // The session puts its id into every message.
    void set_session_id(std::string_view id);
    std::string_view session_id() const { return {session_id_.data(), session_size_}; }
    void set_send(Send send) { send_ = send; }

    void handle(const Envelope &envelope);
    // refuse answers text that is no message at all.
    void refuse_text(Status why);
    // notice composes a notification; write fills its params object. It stays
    // until the next one, in a separate buffer, so that a tool may notify while
    // it writes its result. "" if it is too long.
    std::string_view notice(std::string_view method, FunctionRef<void(JsonWriter &)> write);
    void notify(std::string_view method, FunctionRef<void(JsonWriter &)> write);

    Result<Ticket> open(Call &call);
    // finish answers a deferred call, after the tool that deferred it returned.
    // A ticket used twice is ignored.
    void finish(Ticket ticket, FunctionRef<Status(ToolResult &)> write);
    std::size_t open_calls() const;

    // What the server says of itself at each initialize; tools may need it.
    Hook<void(JsonView capabilities)> on_capabilities;

private:
    struct Request {
        std::string_view id;  // as written; "null" without one to echo
        std::uint64_t digest = 0;
        JsonView params;
        bool operator_scope = false;
    };
    struct Open {
        std::array<char, max_id> id;
        std::uint64_t digest = 0;
        std::uint16_t turn = 0;
        std::uint8_t id_size = 0;
        bool used = false;
    };

    void dispatch(const Request &request, std::string_view method);
    void initialize(const Request &request);
    void ping(const Request &request);
    void list(const Request &request);
    const Tool *first_of_page(std::string_view cursor) const;
    void write_page(JsonWriter &w, const Tool *from, bool with_user_tools) const;
    void call(const Request &request);
    void run(const Request &request, const Tool &tool, const Arguments &args);
    bool within_rate(const Tool &tool);
    std::uint32_t now_s() const;
    bool repeated(const Request &request, const Tool &tool);
    bool survived(const Request &request, const Tool &tool);
    void remember(const Request &request, const Tool &tool);

    JsonWriter begin_reply(std::string_view id);
    void end_reply(JsonWriter &w);
    void send_result(JsonWriter &w, std::size_t result_start, std::uint64_t digest);
    void error(std::string_view id, RpcError code, const char *before);
    void error(std::string_view id, RpcError code, const char *before, std::string_view name, std::string_view after);
    void refuse(std::string_view id, const Refusal &refusal);

    const ToolRegistry &tools_;
    McpOptions options_;
    KvStore *store_;
    const Clock *clock_;
    Send send_;
    RequestRing ring_;
    RateLimit limit_;
    std::array<Open, max_open> open_{};
    std::array<char, 64> session_id_{};
    std::size_t session_size_ = 0;
    std::size_t capacity_;
    std::unique_ptr<char[]> buffer_;
    std::unique_ptr<char[]> notice_;
    const Request *current_ = nullptr;  // while a tool runs
};

}  // namespace fleet
