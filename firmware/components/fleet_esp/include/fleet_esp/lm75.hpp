// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/status.hpp"

#include "driver/i2c_master.h"

namespace fleet::esp {

// Lm75 is the thermometer LM75, or one of its many likes, at address 0x48.
class Lm75 {
public:
    // start fails if nothing answers there.
    Status start(int sda, int scl);
    Result<int> read();  // tenths of a degree Celsius

private:
    i2c_master_dev_handle_t device_ = nullptr;
};

}  // namespace fleet::esp
