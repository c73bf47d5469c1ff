// SPDX-License-Identifier: Apache-2.0
// Stub for espressif/libsodium 1.0.20, from its documented use; not compared with the header yet. See README.md.
#pragma once

extern "C" int sodium_init(void);
extern "C" int crypto_sign_verify_detached(const unsigned char *sig, const unsigned char *m, unsigned long long mlen,
                                           const unsigned char *pk);
