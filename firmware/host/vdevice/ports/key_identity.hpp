// SPDX-License-Identifier: Apache-2.0
// The Identity on Linux: a serial number and a key in a file stand for eFuses.
#pragma once

#include "fleet/ports.hpp"

namespace fleet::host {

class KeyIdentity final : public Identity {
public:
    // load reads "serial" in the first line and the key, 64 hex digits, in the
    // second. Without the file the device has no serial number, as most boards.
    static KeyIdentity load(const std::string &path);
    std::string serial() const override { return serial_; }
    Result<std::string> hmac(std::string_view challenge) const override;

private:
    std::string serial_, key_;
};

}  // namespace fleet::host
