// SPDX-License-Identifier: Apache-2.0
// The primitives that a platform brings along: mbedtls on ESP-IDF, libcrypto on
// Linux. The core implements no cryptography.
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <array>
#include <cstdint>
#include <memory>

namespace fleet {

using Digest = std::array<std::uint8_t, 32>;
using Ed25519Key = std::array<std::uint8_t, 32>;
using Ed25519Signature = std::array<std::uint8_t, 64>;

// Sha256 is one running sum.
class Sha256 {
public:
    virtual ~Sha256() = default;
    virtual void update(Bytes bytes) = 0;
    virtual Digest finish() = 0;  // once, at the end
};

class Crypto {
public:
    virtual ~Crypto() = default;
    virtual std::unique_ptr<Sha256> sha256() = 0;  // null when memory is short
    // verify_ed25519 is ok, corrupt when the signature does not match, or
    // unsupported where the platform lacks the curve.
    virtual Status verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) = 0;
};

}  // namespace fleet
