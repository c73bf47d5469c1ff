// SPDX-License-Identifier: MIT
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// OfflineWatch restarts a device that has had no broker for hours: the last
// help against a radio or a stack that hangs without telling. It counts these
// restarts in the store, as "offline_boots".
class OfflineWatch {
public:
    OfflineWatch(const Machine &machine, std::uint32_t hours) : machine_(machine), limit_us_(hours * 3600000000LL) {}

    void start(std::function<bool()> online);

private:
    static constexpr std::uint32_t pace_ms = 60000;
    void look();
    void restart();

    const Machine &machine_;
    std::int64_t limit_us_;  // 0: never
    std::int64_t last_online_us_ = 0;
    std::function<bool()> online_;
};

}  // namespace fleet::esp
