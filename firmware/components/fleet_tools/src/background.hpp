// SPDX-License-Identifier: Apache-2.0
// Calls whose work blocks: it runs on the worker, and the answer comes after it.
#pragma once

#include "fleet/tools/toolkit.hpp"

#include <functional>
#include <string>

namespace fleet {

// An Outcome is a status, and what only shows at run time.
struct Outcome {
    Status status;
    std::string detail;

    Outcome() = default;
    Outcome(Status s) : status(s) {}
    Outcome(Code code, const char *why, std::string more) : status(code, why), detail(std::move(more)) {}
};

// in_background answers the call with true, or with the failure of the job.
Status in_background(Toolkit &kit, Call &call, std::function<Outcome()> job);

// expect_200 takes the answer to an upload or download.
Outcome expect_200(const Result<HttpResponse> &answer);

inline Toolkit &kit_of(void *context) {
    return *static_cast<Toolkit *>(context);
}

}  // namespace fleet
