// SPDX-License-Identifier: Apache-2.0
// tools/list: pages cut by the rule of stock devices.
#include "fleet/mcp_server.hpp"

namespace fleet {
namespace {

constexpr std::size_t next_cursor_bytes = 30;  // what stock keeps free for nextCursor

}  // namespace

const Tool *McpServer::first_of_page(std::string_view cursor) const {
    return cursor.empty() ? tools_.begin() : tools_.find(cursor);
}

void McpServer::list(const Request &request) {
    const JsonView cursor = request.params.member("cursor");
    if (cursor.exists() && !cursor.is_string()) {
        return error(request.id, RpcError::invalid_params, "cursor is not a string");
    }
    const Tool *from = first_of_page(cursor.text());
    if (!from) return error(request.id, RpcError::invalid_params, "Unknown cursor: ", cursor.text(), {});
    JsonWriter w = begin_reply(request.id);
    w.key("result");
    write_page(w, from, request.params.is_true("withUserTools"));
    end_reply(w);
}

void McpServer::write_page(JsonWriter &w, const Tool *from, bool with_user_tools) const {
    const std::size_t start = w.size();
    w.begin_object().key("tools").begin_array();
    const char *next = nullptr;
    for (const Tool *t = from; t != tools_.end() && !next; t++) {
        if (t->info->audience == Audience::user && !with_user_tools) continue;
        const JsonWriter::Mark before = w.mark();
        write_tool(w, *t->info);
        if (!w.overflow() && w.size() - start + 1 + next_cursor_bytes <= options_.page_bytes) continue;
        w.rewind(before);
        next = t->info->name;
    }
    w.end_array();
    if (next) w.member("nextCursor", next);
    w.end_object();
}

}  // namespace fleet
