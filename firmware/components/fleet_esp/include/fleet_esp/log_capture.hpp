// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/hook.hpp"
#include "fleet/log_ring.hpp"
#include "fleet/status.hpp"

#include <string_view>

namespace fleet::esp {

// LogLine is a line of ESP-IDF's log taken apart: "I (1234) wifi: connected".
struct LogLine {
    LogLevel level = LogLevel::info;
    std::string_view tag;
    std::string_view text;
};

// parse_log_line leaves tag empty for a line of another form.
LogLine parse_log_line(std::string_view line);

// start_log_capture keeps a copy of every line that ESP-IDF and its libraries log, in memory
// that a restart by software or a crash leaves alone. There is one log, so this
// is no class.
Status start_log_capture();

// with_log locks the copy and hands it over.
void with_log(FunctionRef<void(LogRing &)> use);

}  // namespace fleet::esp
