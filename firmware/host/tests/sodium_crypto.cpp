// SPDX-License-Identifier: Apache-2.0
#include "sodium_crypto.hpp"

#include "fleet/base64.hpp"
#include "fleet/hex.hpp"

#include <sodium.h>

#include <array>

namespace fleet::test {
namespace {

class SodiumSha256 : public Sha256 {
public:
    SodiumSha256() { crypto_hash_sha256_init(&state_); }
    void update(Bytes bytes) override { crypto_hash_sha256_update(&state_, bytes.data, bytes.size); }
    Digest finish() override {
        Digest digest;
        crypto_hash_sha256_final(&state_, digest.data());
        return digest;
    }

private:
    crypto_hash_sha256_state state_;
};

struct KeyPair {
    explicit KeyPair(std::uint8_t seed) {
        std::array<std::uint8_t, 32> raw;
        raw.fill(seed);
        crypto_sign_seed_keypair(open.data(), secret.data(), raw.data());
    }
    Ed25519Key open;
    std::array<std::uint8_t, 64> secret;
};

}  // namespace

std::unique_ptr<Sha256> SodiumCrypto::sha256() {
    return std::make_unique<SodiumSha256>();
}

Status SodiumCrypto::verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) {
    const bool good = crypto_sign_verify_detached(signature.data(), message.data, message.size, key.data()) == 0;
    return good ? Status{} : Status{Code::corrupt, "the signature does not match"};
}

Status SodiumCrypto::sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key,
                                  Ed25519Signature &signature) {
    std::array<std::uint8_t, 64> secret;
    crypto_sign_seed_keypair(key.data(), secret.data(), seed.data());
    crypto_sign_detached(signature.data(), nullptr, message.data, message.size, secret.data());
    return {};
}

Ed25519Key public_key(std::uint8_t seed) {
    return KeyPair(seed).open;
}

std::string sign_base64(std::uint8_t seed, std::string_view message) {
    Ed25519Signature signature;
    crypto_sign_detached(signature.data(), nullptr, Bytes(message).data, message.size(), KeyPair(seed).secret.data());
    return encode_base64({signature.data(), signature.size()});
}

std::string sha256_hex(std::string_view bytes) {
    SodiumSha256 sum;
    sum.update(Bytes(bytes));
    const Digest d = sum.finish();
    return encode_hex({d.data(), d.size()});
}

}  // namespace fleet::test
