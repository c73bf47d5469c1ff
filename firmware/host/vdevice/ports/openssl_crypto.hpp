// SPDX-License-Identifier: Apache-2.0
// The Crypto port by OpenSSL's libcrypto.
#pragma once

#include "fleet/crypto.hpp"

#include <string>
#include <string_view>

namespace fleet::host {

class OpensslCrypto final : public Crypto {
public:
    std::unique_ptr<Sha256> sha256() override;
    Status verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) override;
    Status sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key, Ed25519Signature &signature) override;
};

std::string hmac_sha256_hex(Bytes key, std::string_view message);
std::string hex_of(const std::uint8_t *data, std::size_t size);

}  // namespace fleet::host
