// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include <array>

namespace fleet::esp {

// GPIO numbers.
struct CameraWiring {
    int clock = -1;  // XCLK
    int i2c_data = -1;
    int i2c_clock = -1;
    int frame = -1;  // VSYNC
    int line = -1;   // HREF
    int dot = -1;    // PCLK
    int power_down = -1;
    int reset = -1;
    std::array<int, 8> data{};  // D0 to D7
};

// DvpCamera is a sensor that makes JPEGs itself, such as the OV2640. It is there only
// with CONFIG_FLEET_CAMERA.
class DvpCamera : public Camera {
public:
    Status start(const CameraWiring &wiring);
    Status take(PhotoSize size, FunctionRef<Status(Bytes)> sink) override;
};

}  // namespace fleet::esp
