// SPDX-License-Identifier: Apache-2.0
// Stub for Mbed TLS 3.6 and 4.0, from the documentation; nothing of the structure is used. See README.md.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MBEDTLS_X509_BADCERT_EXPIRED 0x01
#define MBEDTLS_X509_BADCERT_NOT_TRUSTED 0x08
#define MBEDTLS_X509_BADCERT_FUTURE 0x0200

typedef struct mbedtls_x509_crt {
    int opaque;
} mbedtls_x509_crt;

extern "C" {
void mbedtls_x509_crt_init(mbedtls_x509_crt *crt);
int mbedtls_x509_crt_parse(mbedtls_x509_crt *chain, const unsigned char *buf, size_t buflen);
}
