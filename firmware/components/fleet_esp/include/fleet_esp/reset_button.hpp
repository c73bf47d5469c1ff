// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include <functional>

namespace fleet::esp {

// ResetButton watches a button that is low while pressed, as BOOT is on most
// boards. It calls when the button was held for five seconds, released, and pressed
// once more for a moment. Holding alone does not count: a serial terminal pulls
// BOOT down by DTR for as long as it is open.
class ResetButton {
public:
    explicit ResetButton(Executor &executor) : executor_(executor) {}

    Status start(int gpio, std::function<void()> on_held);

private:
    static constexpr std::uint32_t pace_ms = 100;
    static constexpr std::uint32_t hold_ms = 5000;
    static constexpr std::uint32_t moment_ms = 1000;   // the second press at most
    static constexpr std::uint32_t between_ms = 5000;  // the two presses at most
    void look();
    void released(std::uint32_t held_ms);

    Executor &executor_;
    int gpio_ = -1;
    std::uint32_t held_ms_ = 0;
    std::uint32_t armed_ms_ = 0;  // left for the second press
    std::function<void()> on_held_;
};

}  // namespace fleet::esp
