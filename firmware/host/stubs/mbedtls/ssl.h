// SPDX-License-Identifier: Apache-2.0
// Stub for Mbed TLS 3.6 and 4.0, from the documentation; the fields that are used. See README.md.
#pragma once

#include "mbedtls/x509_crt.h"

#define MBEDTLS_PRIVATE(member) private_##member

typedef struct mbedtls_x509_crl mbedtls_x509_crl;
typedef struct mbedtls_ssl_config {
    int (*MBEDTLS_PRIVATE(f_vrfy))(void *, mbedtls_x509_crt *, int, uint32_t *);
    void *MBEDTLS_PRIVATE(p_vrfy);
    mbedtls_x509_crt *MBEDTLS_PRIVATE(ca_chain);
} mbedtls_ssl_config;

extern "C" {
void mbedtls_ssl_conf_verify(mbedtls_ssl_config *conf, int (*f_vrfy)(void *, mbedtls_x509_crt *, int, uint32_t *),
                             void *p_vrfy);
void mbedtls_ssl_conf_ca_chain(mbedtls_ssl_config *conf, mbedtls_x509_crt *ca_chain, mbedtls_x509_crl *ca_crl);
}
