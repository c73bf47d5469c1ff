// SPDX-License-Identifier: Apache-2.0
// Any message: at most one answer comes back, it is JSON, and tools only see
// arguments that they asked for.
#include "fleet/session.hpp"
#include "fuzz.hpp"

using namespace fleet;

namespace {

constexpr Property tool_properties[] = {Property::Int("level").Range(0, 100).Required(),
                                        Property::Bool("on").Default(1),
                                        Property::Text("label").DefaultText("a").AtMost(16)};
constexpr ToolInfo tool_info = ToolInfo("t", "d").With(tool_properties).Repeats(Repeat::reads);
constexpr ToolInfo user_info = ToolInfo("u", "d").UserOnly();
constexpr ToolInfo later_info = ToolInfo("l", "d");

Ticket ticket;

Status run(void *, Call &call) {
    fuzz::require(call.args.integer("level") >= 0 && call.args.integer("level") <= 100);
    fuzz::require(call.args.text("label").size() <= 16);
    return call.result.text(call.args.text("label"));
}

Status run_user(void *, Call &call) {
    fuzz::require(call.operator_scope);
    return {};
}

Status run_later(void *, Call &call) {
    const Result<Ticket> t = call.defer();
    if (!t.ok()) return t.status();
    ticket = t.value();
    return {};
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    ToolRegistry tools;
    fuzz::require(tools.add(tool_info, run, nullptr).ok() && tools.add(user_info, run_user, nullptr).ok() &&
                  tools.add(later_info, run_later, nullptr).ok());
    McpServer server(tools, {"b", "v", 2560, {}}, nullptr, nullptr);
    int answers = 0;
    server.set_send([&](std::string_view m) {
        answers++;
        fuzz::require(scan_json(m, {16384, 16, 1000}).ok());
    });
    Session session(server);
    session.receive({data, size});
    session.receive({data, size});  // a redelivery
    fuzz::require(answers <= 2);
    server.finish(ticket, [](ToolResult &r) { return r.integer(1); });
    return 0;
}
