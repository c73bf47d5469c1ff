// SPDX-License-Identifier: MIT
#include "openssl_crypto.hpp"

#include "fleet/base64.hpp"
#include "fleet/hex.hpp"

#include <openssl/evp.h>

#include <array>

namespace fleet::test {
namespace {

class OpensslSha256 : public Sha256 {
public:
    OpensslSha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
    ~OpensslSha256() override { EVP_MD_CTX_free(context_); }
    void update(Bytes bytes) override { EVP_DigestUpdate(context_, bytes.data, bytes.size); }
    Digest finish() override {
        Digest digest;
        EVP_DigestFinal_ex(context_, digest.data(), nullptr);
        return digest;
    }

private:
    EVP_MD_CTX *context_;
};

EVP_PKEY *private_key(std::uint8_t seed) {
    std::array<std::uint8_t, 32> raw;
    raw.fill(seed);
    return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, raw.data(), raw.size());
}

}  // namespace

std::unique_ptr<Sha256> OpensslCrypto::sha256() { return std::make_unique<OpensslSha256>(); }

Status OpensslCrypto::verify_ed25519(const Ed25519Key &key, Bytes message, const Ed25519Signature &signature) {
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.data(), key.size());
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool good = pkey && EVP_DigestVerifyInit(context, nullptr, nullptr, nullptr, pkey) == 1 &&
                      EVP_DigestVerify(context, signature.data(), signature.size(), message.data, message.size) == 1;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(pkey);
    return good ? Status{} : Status{Code::corrupt, "the signature does not match"};
}

Ed25519Key public_key(std::uint8_t seed) {
    EVP_PKEY *pkey = private_key(seed);
    Ed25519Key key;
    std::size_t size = key.size();
    EVP_PKEY_get_raw_public_key(pkey, key.data(), &size);
    EVP_PKEY_free(pkey);
    return key;
}

std::string sign_base64(std::uint8_t seed, std::string_view message) {
    EVP_PKEY *pkey = private_key(seed);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    Ed25519Signature signature;
    std::size_t size = signature.size();
    EVP_DigestSignInit(context, nullptr, nullptr, nullptr, pkey);
    EVP_DigestSign(context, signature.data(), &size, Bytes(message).data, message.size());
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(pkey);
    return encode_base64({signature.data(), signature.size()});
}

std::string sha256_hex(std::string_view bytes) {
    OpensslSha256 sum;
    sum.update(Bytes(bytes));
    const Digest d = sum.finish();
    return encode_hex({d.data(), d.size()});
}

}  // namespace fleet::test
