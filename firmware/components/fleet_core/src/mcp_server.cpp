// SPDX-License-Identifier: Apache-2.0
#include "fleet/mcp_server.hpp"

#include <cstring>

namespace fleet {
namespace {

constexpr std::string_view no_id = "null";
constexpr std::size_t envelope_bytes = 512;  // envelope, id, session id, nextCursor

std::size_t page_of(const McpOptions &o) {
    return o.page_bytes < 2560 ? 2560 : o.page_bytes;
}

// is_valid_id reports whether an id can be answered: a string or an integer, not
// longer than we keep.
bool is_valid_id(JsonView id, std::string_view raw) {
    if (raw.empty() || raw.size() > McpServer::max_id) return false;
    return id.is_string() || (id.is_number() && raw.find_first_of(".eE") == std::string_view::npos);
}

}  // namespace

McpServer::McpServer(const ToolRegistry &tools, const McpOptions &options, KvStore *store, const Clock *clock)
    : tools_(tools),
      options_(options),
      store_(store),
      clock_(clock),
      limit_(options.rates),
      capacity_(page_of(options) + envelope_bytes),
      buffer_(new char[page_of(options) + envelope_bytes]),
      notice_(new char[max_notice]) {
    options_.page_bytes = page_of(options);
}

void McpServer::set_session_id(std::string_view id) {
    session_size_ = id.size() < session_id_.size() ? id.size() : session_id_.size();
    std::memcpy(session_id_.data(), id.data(), session_size_);
}

void McpServer::refuse_text(Status why) {
    error(no_id, RpcError::parse, why.why);
}

void McpServer::handle(const Envelope &envelope) {
    const JsonView payload = envelope.payload();
    if (!payload.is_object()) return error(no_id, RpcError::invalid_request, "The payload is not an object");
    const std::string_view method = payload.text("method");
    if (method.substr(0, 13) == "notifications") return;
    const JsonView id = payload.member("id");
    const std::string_view raw_id = raw_member(envelope.raw_payload(), "id");
    const Request request{is_valid_id(id, raw_id) ? raw_id : no_id, digest_request(envelope.raw_payload()),
                          payload.member("params"), envelope.operator_scope()};
    if (!id.exists()) return error(no_id, RpcError::invalid_request, "The request has no id");
    if (request.id == no_id)
        return error(no_id, RpcError::invalid_request, "The id is neither a string nor an integer");
    if (payload.text("jsonrpc") != "2.0") {
        return error(request.id, RpcError::invalid_request, "jsonrpc is not \"2.0\"");
    }
    if (!payload.member("method").is_string()) return error(request.id, RpcError::invalid_request, "Missing method");
    if (request.params.exists() && !request.params.is_object()) {
        return error(request.id, RpcError::invalid_params, "params is not an object");
    }
    dispatch(request, method);
}

void McpServer::dispatch(const Request &request, std::string_view method) {
    if (method == "tools/call") return call(request);
    if (method == "tools/list") return list(request);
    if (method == "ping") return ping(request);
    if (method == "initialize") return initialize(request);
    error(request.id, RpcError::method_not_found, "Method not implemented: ", method, {});
}

void McpServer::initialize(const Request &request) {
    if (on_capabilities) on_capabilities(request.params.member("capabilities"));
    JsonWriter w = begin_reply(request.id);
    w.begin_object("result").member("protocolVersion", "2024-11-05");
    w.begin_object("capabilities").begin_object("tools").end_object().end_object();
    w.begin_object("serverInfo").member("name", options_.name).member("version", options_.version).end_object();
    w.end_object();
    end_reply(w);
}

void McpServer::ping(const Request &request) {
    JsonWriter w = begin_reply(request.id);
    w.begin_object("result").end_object();
    end_reply(w);
}

JsonWriter McpServer::begin_reply(std::string_view id) {
    JsonWriter w(buffer_.get(), capacity_);
    begin_mcp(w, session_id());
    w.begin_object().member("jsonrpc", "2.0").key("id").raw(id);
    return w;
}

void McpServer::end_reply(JsonWriter &w) {
    w.end_object();
    end_mcp(w);
    if (send_ && !w.overflow()) send_(w.view());
}

void McpServer::error(std::string_view id, RpcError code, const char *before) {
    error(id, code, before, {}, {});
}

void McpServer::error(std::string_view id, RpcError code, const char *before, std::string_view name,
                      std::string_view after) {
    JsonWriter w = begin_reply(id);
    w.begin_object("error").member("code", static_cast<int>(code));
    // A name from the request may be long; what is repeated of it need not be.
    w.key("message").open_text().append(before).append(name.substr(0, 128)).append(after).close_text();
    w.end_object();
    end_reply(w);
}

void McpServer::refuse(std::string_view id, const Refusal &r) {
    if (!r.with_bound) return error(id, RpcError::invalid_params, r.before, r.name, r.after);
    char text[96];
    JsonWriter rest(text, sizeof text);
    rest.append(r.after).integer(r.bound);
    error(id, RpcError::invalid_params, r.before, r.name, rest.view());
}

std::string_view McpServer::notice(std::string_view method, FunctionRef<void(JsonWriter &)> write) {
    JsonWriter w(notice_.get(), max_notice);
    begin_mcp(w, session_id());
    w.begin_object().member("jsonrpc", "2.0").member("method", method).begin_object("params");
    write(w);
    w.end_object().end_object();
    end_mcp(w);
    return w.overflow() ? std::string_view() : w.view();
}

void McpServer::notify(std::string_view method, FunctionRef<void(JsonWriter &)> write) {
    const std::string_view text = notice(method, write);
    if (send_ && !text.empty()) send_(text);
}

}  // namespace fleet
