// SPDX-License-Identifier: Apache-2.0
// Stub, for 6.0 (TF-PSA-Crypto 1.0), from the documentation. See README.md.
#pragma once

#if FLEET_STUB_IDF < 60
#error "IDF 5.5 does not turn PSA on by default: use mbedtls/sha256.h"
#endif

#include <stddef.h>
#include <stdint.h>

typedef int32_t psa_status_t;
typedef uint32_t psa_algorithm_t;
#define PSA_SUCCESS ((psa_status_t)0)
#define PSA_ALG_SHA_256 ((psa_algorithm_t)0x02000009)

typedef struct {
    unsigned char opaque[128];
} psa_hash_operation_t;
#define PSA_HASH_OPERATION_INIT {{0}}

extern "C" {
psa_status_t psa_hash_setup(psa_hash_operation_t *operation, psa_algorithm_t alg);
psa_status_t psa_hash_update(psa_hash_operation_t *operation, const uint8_t *input, size_t input_length);
psa_status_t psa_hash_finish(psa_hash_operation_t *operation, uint8_t *hash, size_t hash_size, size_t *hash_length);
psa_status_t psa_hash_abort(psa_hash_operation_t *operation);
}
