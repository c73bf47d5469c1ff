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
using Ed25519Seed = std::array<std::uint8_t, 32>;  // the private half of a key pair

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
    // sign_ed25519 gives the public key of the seed and the signature of message.
    // Unsupported where the platform lacks the curve, which is also the default.
    virtual Status sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key, Ed25519Signature &signature) {
        (void)seed, (void)message, (void)key, (void)signature;
        return {Code::unsupported, "this build has no Ed25519"};
    }
};

}  // namespace fleet
