// SPDX-License-Identifier: Apache-2.0
// Calls whose work blocks: it runs on the worker, and the answer comes after it.
#pragma once

#include "fleet/tools/toolkit.hpp"

#include <string>

namespace fleet {

// An Outcome is a status, and what only shows at run time.
struct Outcome {
    Status status;
    int http = 0;  // an answer that was not expected

    Outcome() = default;
    Outcome(Status s) : status(s) {}
    Outcome(Code code, const char *why, int number) : status(code, why), http(number) {}
};

// A Job is work with a URL. Each call makes one, and deleted with its
// answer.
struct Job {
    using Run = Outcome (*)(const Job &);

    const Machine &machine;
    McpServer &server;
    Run run;
    Ticket ticket;
    std::string url;
    int number = 0;     // what the job wants to know besides its URL
    bool flag = false;  // the same
    Outcome outcome;
};

// in_background runs a job on the call's argument `url`, if that may be
// followed, and answers with true or with its failure.
Status in_background(Toolkit &kit, Call &call, Job::Run run, int number = 0, bool flag = false);

// expect_200 takes the answer to an upload or download.
Outcome expect_200(const Result<HttpResponse> &answer);

// read_level takes the call's argument `level`.
Status read_level(const Call &call, LogLevel &level);

inline Toolkit &kit_of(void *context) {
    return *static_cast<Toolkit *>(context);
}

// ok_or is true, or the failure.
inline Status ok_or(Status status, Call &call) {
    return status.ok() ? call.result.boolean(true) : status;
}

}  // namespace fleet
