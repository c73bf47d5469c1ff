// SPDX-License-Identifier: Apache-2.0
// Stub, for 5.5 (Mbed TLS 3.6), from the documentation. See README.md.
#pragma once

#if FLEET_STUB_IDF >= 60
#error "Mbed TLS 4 has no public mbedtls_sha256_*: use psa/crypto.h"
#endif

#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char opaque[128];
} mbedtls_sha256_context;

extern "C" {
void mbedtls_sha256_init(mbedtls_sha256_context *ctx);
void mbedtls_sha256_free(mbedtls_sha256_context *ctx);
int mbedtls_sha256_starts(mbedtls_sha256_context *ctx, int is224);
int mbedtls_sha256_update(mbedtls_sha256_context *ctx, const unsigned char *input, size_t ilen);
int mbedtls_sha256_finish(mbedtls_sha256_context *ctx, unsigned char *output);
}
