// SPDX-License-Identifier: Apache-2.0
#include "fleet/rate_limit.hpp"

namespace fleet {

bool RateLimit::take(std::int64_t now_us) {
    if (rates_.per_second == 0) return true;
    const std::uint32_t cost = 1'000'000u / rates_.per_second;
    if (paid_until_us_ < now_us) paid_until_us_ = now_us;
    if (paid_until_us_ + cost > now_us + std::int64_t{cost} * rates_.burst) return false;
    paid_until_us_ += cost;
    return true;
}

bool RateLimit::may_disrupt(std::int64_t now_us) const {
    return now_us >= next_disrupt_us_;
}

}  // namespace fleet
