// SPDX-License-Identifier: Apache-2.0
#include "device/behaviour.hpp"

#include "fleet/json.hpp"

namespace fleet::host {

Behaviour read_behaviour(const std::string &payload) {
    Behaviour b;
    if (payload.empty()) return b;
    const Result<JsonDocument> document = JsonDocument::parse(payload);
    if (!document.ok()) return b;
    const JsonView root = document.value().root();
    b.selftest_fails = root.member("selftest").text() == "fail";
    b.crash_after_ms = root.member("crash_after_ms").integer_or(0);
    b.no_network = root.member("no_network").is_true();
    b.leak = root.member("slow_heap_leak").integer_or(0);
    return b;
}

}  // namespace fleet::host
