// SPDX-License-Identifier: Apache-2.0
#include "fleet/envelope.hpp"

#include <utility>

namespace fleet {

Result<Envelope> Envelope::parse(std::string_view text, const JsonLimits &limits) {
    Result<JsonDocument> document = JsonDocument::parse(text, limits);
    if (!document.ok()) return document.status();
    Envelope envelope;
    envelope.document_ = std::move(document.value());
    envelope.raw_payload_ = raw_member(text, "payload");
    if (!envelope.root().member("type").is_string()) return Status{Code::invalid, "message has no type"};
    return Result<Envelope>(std::move(envelope));
}

void begin_mcp(JsonWriter &w, std::string_view session_id) {
    w.begin_object().member("session_id", session_id).member("type", "mcp").key("payload");
}

}  // namespace fleet
