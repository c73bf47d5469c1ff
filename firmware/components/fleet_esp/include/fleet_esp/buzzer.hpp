// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// Buzzer is a passive piezo on a pin. A new volume is heard at once, as a short
// beep.
class Buzzer final : public Speaker {
public:
    explicit Buzzer(Executor &executor) : executor_(executor) {}

    Status start(int gpio);
    Status set_volume(int percent) override;
    int volume() const override { return volume_; }

private:
    Executor &executor_;
    int volume_ = 0;
    bool started_ = false;
};

}  // namespace fleet::esp
