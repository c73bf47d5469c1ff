// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

#include <utility>

namespace fleet {

namespace {

void answer(McpServer &server, Ticket ticket, const Outcome &outcome) {
    server.finish(ticket, [&outcome](ToolResult &result) -> Status {
        if (outcome.status.ok()) return result.boolean(true);
        return result.fail(outcome.status.code, outcome.status.why, outcome.detail);
    });
}

}  // namespace

Status in_background(Toolkit &kit, Call &call, std::function<Outcome()> job) {
    const Result<Ticket> ticket = call.defer();
    if (!ticket.ok()) return ticket.status();
    Executor *executor = kit.machine->executor;
    executor->work([executor, server = &kit.unit->server(), ticket = ticket.value(), job = std::move(job)] {
        executor->post([server, ticket, outcome = job()] { answer(*server, ticket, outcome); });
    });
    return {};
}

Outcome expect_200(const Result<HttpResponse> &answer) {
    if (!answer.ok()) return answer.status();
    if (answer.value().status == 200) return {};
    return {Code::unavailable, "unexpected status code: ", std::to_string(answer.value().status)};
}

}  // namespace fleet
