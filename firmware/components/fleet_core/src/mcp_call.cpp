// SPDX-License-Identifier: Apache-2.0
// tools/call: who may, with what, and not twice.
#include "fleet/mcp_server.hpp"
#include "fleet/stored.hpp"

#include <cstring>

namespace fleet {
namespace {

constexpr char last_disruptive_key[] = "last_disruptive";  // 15 characters, NVS's limit

// A redelivery of the call that caused a restart comes with the first
// connections after it; later the same bytes are taken for a new call.
constexpr std::int64_t redelivery_us = 10LL * 60 * 1000 * 1000;

}  // namespace

Result<Ticket> Call::defer() {
    return server.open(*this);
}

void McpServer::call(const Request &request) {
    if (!request.params.exists()) return error(request.id, RpcError::invalid_params, "Missing params");
    const JsonView name = request.params.member("name");
    if (!name.is_string()) return error(request.id, RpcError::invalid_params, "Missing name");
    const JsonView json = request.params.member("arguments");
    if (json.exists() && !json.is_object()) {
        return error(request.id, RpcError::invalid_params, "Invalid arguments");
    }
    const Tool *tool = tools_.find(name.text());
    if (!tool) return error(request.id, RpcError::invalid_params, "Unknown tool: ", name.text(), {});
    if (tool->info->audience == Audience::user && !request.operator_scope) {
        return error(request.id, RpcError::not_allowed, "Operator scope needed to call ", tool->info->name, {});
    }
    Arguments args;
    if (Refusal r = args.check(*tool->info, json); r.refused()) return refuse(request.id, r);
    if (repeated(request, *tool)) return;
    if (!within_rate(*tool)) return error(request.id, RpcError::too_many, "too many calls");
    run(request, *tool, args);
}

// A disruptive call that failed disrupted nothing: it may be tried again.
bool McpServer::within_rate(const Tool &tool) {
    if (!clock_) return true;
    const std::int64_t now = clock_->mono_us();
    return tool.info->repeat == Repeat::disrupts ? limit_.may_disrupt(now) : limit_.take(now);
}

void McpServer::run(const Request &request, const Tool &tool, const Arguments &args) {
    remember(request, tool);
    JsonWriter w = begin_reply(request.id);
    w.key("result");
    const std::size_t start = w.size();
    // Inside the reply's reserve, so that the brackets after it always fit.
    JsonWriter body(buffer_.get() + start, capacity_ - start - 2);
    ToolResult result(body);
    Call call{args, result, request.operator_scope, *this, false, {}};
    current_ = &request;
    const Status outcome = tool.run(tool.context, call);
    current_ = nullptr;
    if (outcome.ok() && tool.info->repeat == Repeat::disrupts && clock_) limit_.disrupted(clock_->mono_us());
    if (call.deferred && outcome.ok()) return;
    if (call.deferred) open_[call.ticket.slot].used = false;
    result.settle(outcome);
    w.skip(body.size());
    send_result(w, start, request.digest);
}

void McpServer::send_result(JsonWriter &w, std::size_t result_start, std::uint64_t digest) {
    ring_.answer(digest, w.view().substr(result_start));
    end_reply(w);
}

// now_s is the time since boot; 0 without a clock, and nothing is forgotten then.
std::uint32_t McpServer::now_s() const {
    return clock_ ? static_cast<std::uint32_t>(clock_->mono_us() / 1'000'000) : 0;
}

// repeated answers a request that was run before, and reports whether it was.
bool McpServer::repeated(const Request &request, const Tool &tool) {
    if (tool.info->repeat == Repeat::reads) return false;
    const Seen seen = ring_.look(request.digest, now_s());
    if (seen == Seen::running) return true;  // its answer is on the way
    if (seen == Seen::never) return survived(request, tool);
    const std::string_view reply = ring_.reply(request.digest);
    if (reply.empty()) {
        error(request.id, RpcError::internal, "Already run; its answer is not kept: ", tool.info->name, {});
        return true;
    }
    JsonWriter w = begin_reply(request.id);
    w.key("result").raw(reply);
    end_reply(w);
    return true;
}

// survived is repeated for the call that restarted the device.
bool McpServer::survived(const Request &request, const Tool &tool) {
    if (tool.info->repeat != Repeat::disrupts || !store_ || !clock_) return false;
    if (clock_->mono_us() > redelivery_us) return false;
    if (stored_int(*store_, last_disruptive_key, 0) != static_cast<std::int64_t>(request.digest)) return false;
    JsonWriter w = begin_reply(request.id);
    w.key("result");
    ToolResult result(w);
    result.settle(result.text("already run, before the restart"));
    end_reply(w);
    return true;
}

void McpServer::remember(const Request &request, const Tool &tool) {
    if (tool.info->repeat == Repeat::reads) return;
    ring_.start(request.digest, now_s());
    if (tool.info->repeat != Repeat::disrupts || !store_) return;
    // Not being able to remember is no reason not to restart.
    put_int(*store_, last_disruptive_key, static_cast<std::int64_t>(request.digest));
}

Result<Ticket> McpServer::open(Call &call) {
    if (!current_ || call.deferred) return Status{Code::invalid, "the call is not open"};
    for (std::size_t i = 0; i < max_open; i++) {
        Open &o = open_[i];
        if (o.used) continue;
        o.used = true;
        o.turn++;
        o.digest = current_->digest;
        o.id_size = static_cast<std::uint8_t>(current_->id.size());
        std::memcpy(o.id.data(), current_->id.data(), o.id_size);
        call.deferred = true;
        call.ticket = {static_cast<std::uint8_t>(i), o.turn};
        return call.ticket;
    }
    return Status{Code::busy, "too many calls are under way"};
}

void McpServer::finish(Ticket ticket, FunctionRef<Status(ToolResult &)> write) {
    if (ticket.slot >= max_open) return;
    Open &o = open_[ticket.slot];
    if (!o.used || o.turn != ticket.turn) return;
    o.used = false;
    JsonWriter w = begin_reply({o.id.data(), o.id_size});
    w.key("result");
    const std::size_t start = w.size();
    JsonWriter body(buffer_.get() + start, capacity_ - start - 2);
    ToolResult result(body);
    result.settle(write(result));
    w.skip(body.size());
    send_result(w, start, o.digest);
}

std::size_t McpServer::open_calls() const {
    std::size_t n = 0;
    for (const Open &o : open_)
        n += o.used;
    return n;
}

}  // namespace fleet
