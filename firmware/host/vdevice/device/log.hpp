// SPDX-License-Identifier: Apache-2.0
// The log of a virtual device: a ring that outlives restarts, and standard
// error.
#pragma once

#include "fleet/hook.hpp"
#include "fleet/log_ring.hpp"

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace fleet::host {

class Log {
public:
    // The ring's memory is the file at path, mapped: it survives execv and kill,
    // as no-init RAM survives a reset.
    Log(const std::string &path, bool quiet, std::function<std::uint32_t()> uptime_ms);
    ~Log();
    Log(const Log &) = delete;
    Log &operator=(const Log &) = delete;

    void write(LogLevel level, const char *tag, const std::string &text);
    void with(FunctionRef<void(LogRing &)> use);

private:
    MutableBytes map(const std::string &path);

    std::mutex mutex_;
    std::vector<std::uint8_t> fallback_;
    void *mapped_ = nullptr;
    LogRing ring_;
    bool quiet_;
    std::function<std::uint32_t()> uptime_ms_;
};

}  // namespace fleet::host
