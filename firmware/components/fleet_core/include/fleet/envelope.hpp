// SPDX-License-Identifier: Apache-2.0
// The one form of all messages: {"type":…, "session_id":…, "payload":…}.
#pragma once

#include "fleet/json.hpp"
#include "fleet/json_writer.hpp"

#include <string_view>

namespace fleet {

// An Envelope is one message from the server. It keeps views into the text it
// was parsed from.
class Envelope {
public:
    static Result<Envelope> parse(std::string_view text, const JsonLimits &limits = {});

    std::string_view type() const { return document_.root().text("type"); }
    std::string_view session_id() const { return document_.root().text("session_id"); }
    JsonView root() const { return document_.root(); }
    JsonView payload() const { return document_.root().member("payload"); }
    std::string_view raw_payload() const { return raw_payload_; }
    // The server vouches that an operator, not a model, stands behind a call.
    bool operator_scope() const { return document_.root().text("scope") == "operator"; }

private:
    JsonDocument document_;
    std::string_view raw_payload_;
};

// begin_mcp writes up to and including the key of the payload; the key order is
// that of stock devices.
void begin_mcp(JsonWriter &w, std::string_view session_id);
inline void end_mcp(JsonWriter &w) {
    w.end_object();
}

}  // namespace fleet
