// SPDX-License-Identifier: Apache-2.0
// How many calls a device takes: a server gone wild does not wear out its flash
// or keep it from its own work.
#pragma once

#include <cstdint>

namespace fleet {

struct CallRates {
    std::uint16_t per_second = 10;     // of all calls; 0: no limit
    std::uint16_t burst = 20;          // after a pause
    std::uint16_t disrupt_gap_s = 10;  // between two calls that restart the device; 0: no limit
};

class RateLimit {
public:
    explicit RateLimit(const CallRates &rates) : rates_(rates) {}

    bool take(std::int64_t now_us);  // false: too many
    bool may_disrupt(std::int64_t now_us) const;
    void disrupted(std::int64_t now_us) { next_disrupt_us_ = now_us + rates_.disrupt_gap_s * std::int64_t{1'000'000}; }

private:
    CallRates rates_;
    std::int64_t paid_until_us_ = 0;  // each call costs 1 s / per_second, up to burst of them in advance
    std::int64_t next_disrupt_us_ = 0;
};

}  // namespace fleet
