// SPDX-License-Identifier: Apache-2.0
// The Clock on Linux. Wall time is unknown until the server states it, as on a
// chip without a battery; jump() is the fault of the same name.
#pragma once

#include "fleet/ports.hpp"

#include <atomic>

namespace fleet::host {

class PosixClock final : public Clock {
public:
    PosixClock();
    std::int64_t mono_us() const override;
    std::int64_t unix_ms() const override;
    bool synced() const override;
    void set_unix_ms(std::int64_t ms, std::int32_t zone_minutes) override;
    void jump(std::int64_t ms) { offset_ms_ += ms; }

private:
    std::int64_t began_us_;
    std::atomic<std::int64_t> offset_ms_{0};  // unix time minus monotonic
    std::atomic<bool> synced_{false};
};

}  // namespace fleet::host
