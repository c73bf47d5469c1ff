// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

#include "fleet/later.hpp"

#include <memory>

namespace fleet {

namespace {

void answer(void *self) {
    const std::unique_ptr<Job> job(static_cast<Job *>(self));
    job->server.finish(job->ticket, [&job](ToolResult &result) -> Status {
        const Outcome &o = job->outcome;
        if (o.status.ok()) return result.boolean(true);
        if (o.http == 0) return o.status;
        char number[12];
        JsonWriter w(number, sizeof number);
        return result.fail(o.status.code, o.status.why, w.digits(o.http).view());
    });
}

void run(void *self) {
    Job &job = *static_cast<Job *>(self);
    job.outcome = job.run(job);
    post(job.machine, {answer, &job});
}

}  // namespace

Status in_background(Toolkit &kit, Call &call, Job::Run job, int number, bool flag) {
    const std::string_view url = call.args.text("url");
    if (Status allowed = kit.unit->check_url(url); !allowed.ok()) return allowed;
    const Result<Ticket> ticket = call.defer();
    if (!ticket.ok()) return ticket.status();
    const Machine &m = *kit.machine;
    work(m, {run, new Job{m, kit.unit->server(), job, ticket.value(), std::string(url), number, flag, {}}});
    return {};
}

Outcome expect_200(const Result<HttpResponse> &answer) {
    if (!answer.ok()) return answer.status();
    if (answer.value().status == 200) return {};
    return {Code::unavailable, "unexpected status code: ", answer.value().status};
}

}  // namespace fleet
