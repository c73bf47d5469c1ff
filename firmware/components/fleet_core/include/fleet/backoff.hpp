// SPDX-License-Identifier: Apache-2.0
// How long to wait before trying again: exponential with full jitter, so that a
// fleet that lost its broker together does not come back together.
#pragma once

#include "fleet/ports.hpp"

#include <cstdint>

namespace fleet {

class Backoff {
public:
    static constexpr std::uint32_t floor_ms = 250;
    static constexpr std::uint32_t refused_ms = 60'000;  // wrong credentials do not get right by haste

    explicit Backoff(const System &system, std::uint32_t base_ms = 1'000, std::uint32_t most_ms = 300'000)
        : system_(system), base_ms_(base_ms), most_ms_(most_ms) {}

    // next gives the wait before the next attempt, and counts it.
    std::uint32_t next();
    void reset() { attempts_ = 0; }
    // refused makes the next wait at least refused_ms.
    void refused() { refused_ = true; }
    // hold makes the next wait at least that long: a hint of the server.
    void hold(std::uint32_t ms) { hold_ms_ = ms; }
    std::uint32_t attempts() const { return attempts_; }

private:
    std::uint32_t ceiling() const;
    std::uint32_t pick(std::uint32_t most) const;

    const System &system_;
    std::uint32_t base_ms_;
    std::uint32_t most_ms_;
    std::uint32_t attempts_ = 0;
    std::uint32_t hold_ms_ = 0;
    bool refused_ = false;
};

}  // namespace fleet
