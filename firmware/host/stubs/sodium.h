// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include <stddef.h>

extern "C" int sodium_init(void);
extern "C" int crypto_sign_verify_detached(const unsigned char *sig, const unsigned char *m, unsigned long long mlen,
                                           const unsigned char *pk);
extern "C" int crypto_sign_seed_keypair(unsigned char *pk, unsigned char *sk, const unsigned char *seed);
extern "C" int crypto_sign_detached(unsigned char *sig, unsigned long long *siglen, const unsigned char *m,
                                    unsigned long long mlen, const unsigned char *sk);
extern "C" void sodium_memzero(void *pnt, size_t len);
