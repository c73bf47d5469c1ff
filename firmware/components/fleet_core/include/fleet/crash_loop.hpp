// SPDX-License-Identifier: Apache-2.0
// A device that crashes again and again right after its start comes up in safe
// mode: network and upgrades only, so that it can still be helped.
#pragma once

#include "fleet/ports.hpp"

#include <cstdint>

namespace fleet {

class CrashLoop {
public:
    static constexpr std::int64_t crashes_to_safe = 3;
    static constexpr std::uint32_t stable_ms = 5 * 60 * 1000;

    // begin counts this start, and plans to forget the crashes once the device
    // has been up for stable_ms.
    void begin(const Machine &machine);

    bool safe_mode() const { return crashes_ >= crashes_to_safe; }
    std::int64_t crashes() const { return crashes_; }  // in a row, each within stable_ms of its start
    std::int64_t boots() const { return boots_; }      // since the store was made

private:
    std::int64_t crashes_ = 0;
    std::int64_t boots_ = 0;
};

}  // namespace fleet
