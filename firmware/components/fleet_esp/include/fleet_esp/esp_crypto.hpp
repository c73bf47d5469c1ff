// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// EspCrypto takes SHA-256 from Mbed TLS, which uses the chip's accelerator, and
// Ed25519 from libsodium: its signing for the key of the device, and its verdict
// on manifests where CONFIG_FLEET_SIGNED_RELEASES is set.
class EspCrypto final : public Crypto {
public:
    std::unique_ptr<Sha256> sha256() override;
    Status verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) override;
    Status sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key, Ed25519Signature &signature) override;
};

}  // namespace fleet::esp
