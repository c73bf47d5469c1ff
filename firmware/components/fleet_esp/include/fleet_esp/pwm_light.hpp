// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/status.hpp"

#include "driver/ledc.h"

namespace fleet::esp {

// PwmLight dims a backlight or a lamp by LEDC.
class PwmLight {
public:
    Status start(int gpio, bool on_when_low, ledc_channel_t channel);
    Status set(int percent);  // 0 to 100

private:
    ledc_channel_t channel_ = LEDC_CHANNEL_0;
};

}  // namespace fleet::esp
