// SPDX-License-Identifier: Apache-2.0
#include "fleet/backoff.hpp"

namespace fleet {

std::uint32_t Backoff::ceiling() const {
    std::uint64_t most = base_ms_;
    for (std::uint32_t i = 0; i < attempts_ && most < most_ms_; i++)
        most *= 2;
    return most < most_ms_ ? static_cast<std::uint32_t>(most) : most_ms_;
}

std::uint32_t Backoff::pick(std::uint32_t most) const {
    std::uint32_t random = 0;
    system_.random({reinterpret_cast<std::uint8_t *>(&random), sizeof random});
    return static_cast<std::uint32_t>(std::uint64_t{random} * (std::uint64_t{most} + 1) >> 32);
}

std::uint32_t Backoff::next() {
    const std::uint32_t floor = refused_ ? refused_ms : floor_ms;
    std::uint32_t wait = floor + pick(refused_ ? most_ms_ : ceiling());
    // The held-back fleet spreads out, too.
    if (hold_ms_ > 0) wait += hold_ms_;
    if (attempts_ < UINT32_MAX) attempts_++;
    refused_ = false;
    hold_ms_ = 0;
    return wait;
}

}  // namespace fleet
