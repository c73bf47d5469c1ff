// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::host {

// SyntheticCamera sees a test picture: bars of colour and the seconds since the start,
// so that no two photos are the same.
class SyntheticCamera final : public Camera {
public:
    explicit SyntheticCamera(const Clock &clock) : clock_(clock) {}
    Status take(PhotoSize size, FunctionRef<Status(Bytes)> sink) override;

private:
    const Clock &clock_;
};

}  // namespace fleet::host
