// SPDX-License-Identifier: Apache-2.0
#include "ports/openssl_crypto.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace fleet::host {

namespace {

struct FreeContext {
    void operator()(EVP_MD_CTX *c) const { EVP_MD_CTX_free(c); }
    void operator()(EVP_PKEY *k) const { EVP_PKEY_free(k); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

class OpensslSha256 final : public Sha256 {
public:
    OpensslSha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
    void update(Bytes bytes) override { EVP_DigestUpdate(context_.get(), bytes.data, bytes.size); }
    Digest finish() override {
        Digest digest{};
        EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
        return digest;
    }

private:
    Context context_;
};

}  // namespace

std::unique_ptr<Sha256> OpensslCrypto::sha256() {
    return std::make_unique<OpensslSha256>();
}

Status OpensslCrypto::verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) {
    const std::unique_ptr<EVP_PKEY, FreeContext> loaded(
        EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.data(), key.size()));
    const Context context(EVP_MD_CTX_new());
    if (!loaded || EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, loaded.get()) != 1) {
        return {Code::invalid, "the public key is none"};
    }
    if (EVP_DigestVerify(context.get(), signature.data(), signature.size(), message.data, message.size) != 1) {
        return {Code::corrupt, "the signature does not match"};
    }
    return {};
}

Status OpensslCrypto::sign_ed25519(const Ed25519Seed &seed, Bytes message, Ed25519Key &key,
                                   Ed25519Signature &signature) {
    const std::unique_ptr<EVP_PKEY, FreeContext> loaded(
        EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
    const Context context(EVP_MD_CTX_new());
    std::size_t key_size = key.size();
    std::size_t size = signature.size();
    if (!loaded || EVP_PKEY_get_raw_public_key(loaded.get(), key.data(), &key_size) != 1 ||
        EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, loaded.get()) != 1 ||
        EVP_DigestSign(context.get(), signature.data(), &size, message.data, message.size) != 1) {
        return {Code::unsupported, "libcrypto did not sign"};
    }
    return {};
}

std::string hex_of(const std::uint8_t *data, std::size_t size) {
    const char *digits = "0123456789abcdef";
    std::string out;
    out.reserve(size * 2);
    for (std::size_t i = 0; i < size; ++i)
        out += {digits[data[i] >> 4], digits[data[i] & 15]};
    return out;
}

std::string hmac_sha256_hex(Bytes key, std::string_view message) {
    std::uint8_t mac[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    HMAC(EVP_sha256(), key.data, static_cast<int>(key.size), reinterpret_cast<const std::uint8_t *>(message.data()),
         message.size(), mac, &length);
    return hex_of(mac, length);
}

}  // namespace fleet::host
