// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// EfuseIdentity proves who the device is by a key burnt into its fuses, which
// software cannot read. Chips without the HMAC peripheral, and chips whose
// fuses were not burnt, have no serial and no proof.
class EfuseIdentity final : public Identity {
public:
    std::string serial() const override;
    Result<std::string> hmac(std::string_view challenge) const override;
};

}  // namespace fleet::esp
