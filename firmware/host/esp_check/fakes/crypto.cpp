// SPDX-License-Identifier: Apache-2.0
// Mbed TLS's hash, of either version, by OpenSSL; libsodium's verdict is scripted
// by the signature's first byte.
#include "esp_idf_version.h"

#include <openssl/sha.h>

#include <cstring>

#if ESP_IDF_VERSION >= ESP_IDF_VERSION_VAL(6, 0, 0)
#include "psa/crypto.h"
#define CONTEXT(c) reinterpret_cast<SHA256_CTX *>((c)->opaque)

extern "C" {
psa_status_t psa_hash_setup(psa_hash_operation_t *o, psa_algorithm_t) {
    return SHA256_Init(CONTEXT(o)) == 1 ? PSA_SUCCESS : -1;
}
psa_status_t psa_hash_update(psa_hash_operation_t *o, const uint8_t *in, size_t n) {
    return SHA256_Update(CONTEXT(o), in, n) == 1 ? PSA_SUCCESS : -1;
}
psa_status_t psa_hash_finish(psa_hash_operation_t *o, uint8_t *hash, size_t, size_t *n) {
    *n = 32;
    return SHA256_Final(hash, CONTEXT(o)) == 1 ? PSA_SUCCESS : -1;
}
psa_status_t psa_hash_abort(psa_hash_operation_t *) {
    return PSA_SUCCESS;
}
}
#else
#include "mbedtls/sha256.h"
#define CONTEXT(c) reinterpret_cast<SHA256_CTX *>((c)->opaque)

extern "C" {
void mbedtls_sha256_init(mbedtls_sha256_context *) {}
void mbedtls_sha256_free(mbedtls_sha256_context *) {}
int mbedtls_sha256_starts(mbedtls_sha256_context *c, int) {
    return SHA256_Init(CONTEXT(c)) - 1;
}
int mbedtls_sha256_update(mbedtls_sha256_context *c, const unsigned char *in, size_t n) {
    return SHA256_Update(CONTEXT(c), in, n) - 1;
}
int mbedtls_sha256_finish(mbedtls_sha256_context *c, unsigned char *out) {
    return SHA256_Final(out, CONTEXT(c)) - 1;
}
}
#endif

extern "C" int sodium_init(void) {
    return 0;
}
extern "C" int crypto_sign_verify_detached(const unsigned char *sig, const unsigned char *, unsigned long long,
                                           const unsigned char *) {
    return sig[0] == 1 ? 0 : -1;
}
extern "C" int crypto_sign_seed_keypair(unsigned char *pk, unsigned char *sk, const unsigned char *seed) {
    for (int i = 0; i < 32; ++i)
        pk[i] = sk[32 + i] = static_cast<unsigned char>((sk[i] = seed[i]) + 1);
    return 0;
}
extern "C" int crypto_sign_detached(unsigned char *sig, unsigned long long *, const unsigned char *m,
                                    unsigned long long mlen, const unsigned char *sk) {
    for (int i = 0; i < 64; ++i)
        sig[i] = sk[i];
    sig[0] = mlen == 0 ? 0 : m[0];
    return 0;
}
extern "C" void sodium_memzero(void *pnt, size_t len) {
    memset(pnt, 0, len);
}
