// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/esp_crypto.hpp"

#include "esp_idf_version.h"
#include "sdkconfig.h"

#if ESP_IDF_VERSION >= ESP_IDF_VERSION_VAL(6, 0, 0)
#include "psa/crypto.h"
#else
#include "mbedtls/sha256.h"
#endif

#include "sodium.h"

#include <new>

namespace fleet::esp {

namespace {

#if ESP_IDF_VERSION >= ESP_IDF_VERSION_VAL(6, 0, 0)

// Mbed TLS 4 has taken its own hash functions back; PSA is what remains.
class PsaSha256 final : public Sha256 {
public:
    PsaSha256() { psa_hash_setup(&operation_, PSA_ALG_SHA_256); }
    ~PsaSha256() override { psa_hash_abort(&operation_); }
    void update(Bytes bytes) override { psa_hash_update(&operation_, bytes.data, bytes.size); }
    Digest finish() override {
        Digest digest = {};
        std::size_t size = 0;
        psa_hash_finish(&operation_, digest.data(), digest.size(), &size);
        return digest;
    }

private:
    psa_hash_operation_t operation_ = PSA_HASH_OPERATION_INIT;
};
using OwnSha256 = PsaSha256;

#else

class MbedSha256 final : public Sha256 {
public:
    MbedSha256() {
        mbedtls_sha256_init(&context_);
        mbedtls_sha256_starts(&context_, 0);
    }
    ~MbedSha256() override { mbedtls_sha256_free(&context_); }
    void update(Bytes bytes) override { mbedtls_sha256_update(&context_, bytes.data, bytes.size); }
    Digest finish() override {
        Digest digest = {};
        mbedtls_sha256_finish(&context_, digest.data());
        return digest;
    }

private:
    mbedtls_sha256_context context_;
};
using OwnSha256 = MbedSha256;

#endif

}  // namespace

std::unique_ptr<Sha256> EspCrypto::sha256() {
    return std::unique_ptr<Sha256>(new (std::nothrow) OwnSha256());
}

Status EspCrypto::verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) {
#if CONFIG_FLEET_SIGNED_RELEASES
    if (sodium_init() < 0) return {Code::unsupported, "libsodium did not start"};
    if (crypto_sign_verify_detached(signature.data(), message.data, message.size, key.data()) == 0) return {};
    return {Code::corrupt, "the signature does not match"};
#else
    (void)key;
    (void)message;
    (void)signature;
    return {Code::unsupported, "this build has no Ed25519"};
#endif
}

Status EspCrypto::sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key, Ed25519Signature &signature) {
    unsigned char secret[64];
    if (sodium_init() < 0 || crypto_sign_seed_keypair(key.data(), secret, seed.data()) != 0 ||
        crypto_sign_detached(signature.data(), nullptr, message.data, message.size, secret) != 0) {
        return {Code::unsupported, "libsodium did not sign"};
    }
    sodium_memzero(secret, sizeof secret);
    return {};
}

}  // namespace fleet::esp
