// SPDX-License-Identifier: Apache-2.0
// The Crypto port by libsodium, and the signing that only a test does.
#pragma once

#include "fleet/crypto.hpp"

#include <string>
#include <string_view>

namespace fleet::test {

class SodiumCrypto : public Crypto {
public:
    std::unique_ptr<Sha256> sha256() override;
    Status verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) override;
    Status sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key, Ed25519Signature &signature) override;
};

// A key pair made from 32 bytes of the same value.
Ed25519Key public_key(std::uint8_t seed);
std::string sign_base64(std::uint8_t seed, std::string_view message);

std::string sha256_hex(std::string_view bytes);

}  // namespace fleet::test
