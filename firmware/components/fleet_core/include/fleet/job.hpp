// SPDX-License-Identifier: Apache-2.0
// How long work reports itself: a tool answers with a job id at once, the rest
// follows as notifications/job, over restarts too.
#pragma once

#include "fleet/json_writer.hpp"
#include "fleet/status.hpp"

#include <cstdint>
#include <string_view>

namespace fleet {

enum class JobState : std::uint8_t { accepted, progress, done, failed };

constexpr const char *to_string(JobState state) {
    switch (state) {
        case JobState::accepted: return "accepted";
        case JobState::progress: return "progress";
        case JobState::done: return "done";
        case JobState::failed: break;
    }
    return "failed";
}

struct JobReport {
    std::string_view job;   // as the server named it, or made here
    const char *kind = "";  // "upgrade", "rollback", …
    JobState state = JobState::accepted;
    int percent = 0;  // of progress
    Status outcome;   // of failed
};

constexpr char job_method[] = "notifications/job";

// write_job writes the members of the notification's params. at_ms is the time
// it happened, 0 while the clock is not set.
void write_job(JsonWriter &w, const JobReport &report, std::int64_t at_ms);

}  // namespace fleet
