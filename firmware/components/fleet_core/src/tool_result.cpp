// SPDX-License-Identifier: Apache-2.0
#include "fleet/tool_result.hpp"

namespace fleet {

void ToolResult::begin_item(const char *type) {
    w_.rewind(start_);
    w_.begin_object().key("content").begin_array().begin_object().member("type", type);
    written_ = true;
}

Status ToolResult::end_item(bool is_error) {
    w_.end_object().end_array().member("isError", is_error).end_object();
    return {};
}

Status ToolResult::boolean(bool value) {
    return text(value ? "true" : "false");
}

Status ToolResult::integer(std::int64_t value) {
    begin_item("text");
    w_.key("text").begin_embedded().integer(value).end_embedded();
    return end_item(false);
}

Status ToolResult::text(std::string_view value) {
    begin_item("text");
    w_.member("text", value);
    return end_item(false);
}

Status ToolResult::image(std::string_view media_type, Bytes bytes) {
    begin_item("image");
    w_.key("data").base64(bytes).member("mimeType", media_type);
    return end_item(false);
}

JsonWriter &ToolResult::begin_json() {
    begin_item("text");
    return w_.key("text").begin_embedded();
}

Status ToolResult::end_json() {
    w_.end_embedded();
    return end_item(false);
}

Status ToolResult::fail(Code code, std::string_view why, std::string_view detail, std::string_view rest) {
    begin_item("text");
    w_.key("text")
        .open_text()
        .append(to_string(code))
        .append(": ")
        .append(why)
        .append(detail)
        .append(rest)
        .close_text();
    return end_item(true);
}

void ToolResult::settle(Status outcome) {
    if (!outcome.ok()) {
        (void)fail(outcome.code, outcome.why);
    } else if (!written_) {
        (void)boolean(true);
    }
    if (w_.overflow()) (void)fail(Code::no_space, "the result is longer than this device can send");
}

}  // namespace fleet
