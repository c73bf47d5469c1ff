// SPDX-License-Identifier: Apache-2.0
#include "fleet/job.hpp"

namespace fleet {

void write_job(JsonWriter &w, const JobReport &report, std::int64_t at_ms) {
    w.member("job", report.job).member("kind", report.kind).member("state", to_string(report.state));
    if (report.state == JobState::progress) w.member("percent", report.percent);
    if (report.state == JobState::failed) {
        w.member("code", to_string(report.outcome.code)).member("reason", report.outcome.why);
    }
    if (at_ms > 0) w.member("at", at_ms);
}

}  // namespace fleet
