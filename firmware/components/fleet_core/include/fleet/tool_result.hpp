// SPDX-License-Identifier: Apache-2.0
// What a tool answers, written straight into the reply.
#pragma once

#include "fleet/json_writer.hpp"
#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <cstdint>
#include <string_view>

namespace fleet {

// ToolResult takes one content item; the last one written stands. Every method
// gives ok, so that a tool ends with `return call.result.boolean(true);`.
class ToolResult {
public:
    explicit ToolResult(JsonWriter &w) : w_(w), start_(w.mark()) {}

    Status boolean(bool value);
    Status integer(std::int64_t value);
    Status text(std::string_view value);
    Status image(std::string_view media_type, Bytes bytes);

    // JSON travels as text: begin_json gives a writer for one value.
    JsonWriter &begin_json();
    Status end_json();

    // fail reports a failure with a text made at run time.
    Status fail(Code code, std::string_view why, std::string_view detail = {}, std::string_view rest = {});

    // settle ends the result: it turns a failed status, an overflow or silence
    // into a reported failure.
    void settle(Status outcome);

private:
    void begin_item(const char *type);
    Status end_item(bool is_error);

    JsonWriter &w_;
    JsonWriter::Mark start_;
    bool written_ = false;
};

}  // namespace fleet
