// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include "esp_crt_bundle.h"
#include "mbedtls/ssl.h"

namespace fake::tls {

std::string parsed;
std::uint32_t bundle_sees = 0;

namespace {

// As the real one: it answers for the authority if that is all that is wrong.
int verify_by_bundle(void *, mbedtls_x509_crt *, int, uint32_t *flags) {
    bundle_sees = *flags;
    if (*flags == MBEDTLS_X509_BADCERT_NOT_TRUSTED) *flags = 0;
    return 0;
}

}  // namespace

std::uint32_t connect(esp_err_t (*attach)(void *), std::uint32_t flags) {
    mbedtls_ssl_config config = {};
    attach(&config);  // esp-tls ignores what it returns
    if (config.private_ca_chain == nullptr) return MBEDTLS_X509_BADCERT_NOT_TRUSTED;
    if (config.private_f_vrfy != nullptr) config.private_f_vrfy(config.private_p_vrfy, nullptr, 0, &flags);
    return flags;
}

}  // namespace fake::tls

extern "C" {

esp_err_t esp_crt_bundle_attach(void *config) {
    static mbedtls_x509_crt dummy;
    mbedtls_ssl_conf_ca_chain(static_cast<mbedtls_ssl_config *>(config), &dummy, nullptr);
    mbedtls_ssl_conf_verify(static_cast<mbedtls_ssl_config *>(config), fake::tls::verify_by_bundle, nullptr);
    return ESP_OK;
}
void mbedtls_ssl_conf_verify(mbedtls_ssl_config *conf, int (*verify)(void *, mbedtls_x509_crt *, int, uint32_t *),
                             void *context) {
    conf->private_f_vrfy = verify;
    conf->private_p_vrfy = context;
}
void mbedtls_ssl_conf_ca_chain(mbedtls_ssl_config *conf, mbedtls_x509_crt *chain, mbedtls_x509_crl *) {
    conf->private_ca_chain = chain;
}
void mbedtls_x509_crt_init(mbedtls_x509_crt *) {}
int mbedtls_x509_crt_parse(mbedtls_x509_crt *, const unsigned char *bytes, size_t size) {
    fake::tls::parsed.assign(reinterpret_cast<const char *>(bytes), size - 1);
    return fake::tls::parsed == "PEM" ? 0 : -1;
}
}
