// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include <functional>

namespace fleet::esp {

// ResetButton watches a button that is low while pressed, as BOOT is on most
// boards, and calls once when it has been held for five seconds.
class ResetButton {
public:
    explicit ResetButton(Executor &executor) : executor_(executor) {}

    Status start(int gpio, std::function<void()> on_held);

private:
    static constexpr std::uint32_t pace_ms = 100;
    static constexpr std::uint32_t hold_ms = 5000;
    void look();

    Executor &executor_;
    int gpio_ = -1;
    std::uint32_t held_ms_ = 0;
    std::function<void()> on_held_;
};

}  // namespace fleet::esp
