// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/server_trust.hpp"

#include "fleet_esp/esp_clock.hpp"

#include "esp_crt_bundle.h"
#include "esp_log.h"
#include "mbedtls/ssl.h"
#include "mbedtls/x509_crt.h"

#include <atomic>
#include <cstring>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "trust";

using Verify = int (*)(void *, mbedtls_x509_crt *, int, std::uint32_t *);

// The callbacks of Mbed TLS and esp-tls have no context of ours. The bundle's check is
// the same function for every connection.
std::atomic<Verify> verify_by_bundle{nullptr};
std::atomic<const char *> private_pem{nullptr};

void forgive_dates(std::uint32_t *flags) {
    if (date_is_known()) return;
    *flags &= ~static_cast<std::uint32_t>(MBEDTLS_X509_BADCERT_FUTURE);
    if (!earliest_date_is_known()) *flags &= ~static_cast<std::uint32_t>(MBEDTLS_X509_BADCERT_EXPIRED);
}

// The bundle's check looks for its own authority only where nothing but that is
// missing, so the dates come first.
int verify_public(void *context, mbedtls_x509_crt *certificate, int depth, std::uint32_t *flags) {
    forgive_dates(flags);
    const Verify inner = verify_by_bundle;
    return inner != nullptr ? inner(context, certificate, depth, flags) : 0;
}

int verify_private(void *, mbedtls_x509_crt *, int, std::uint32_t *flags) {
    forgive_dates(flags);
    return 0;
}

esp_err_t attach_public(void *config) {
    const esp_err_t err = esp_crt_bundle_attach(config);
    auto *ssl = static_cast<mbedtls_ssl_config *>(config);
    if (err != ESP_OK || ssl == nullptr) return err;
    verify_by_bundle = ssl->MBEDTLS_PRIVATE(f_vrfy);
    mbedtls_ssl_conf_verify(ssl, verify_public, ssl->MBEDTLS_PRIVATE(p_vrfy));
    return ESP_OK;
}

// The authority is read once and kept. Without one, esp-tls refuses every server:
// it asks for a check, and there is nothing to check against.
mbedtls_x509_crt *private_authority() {
    static mbedtls_x509_crt authority;
    static bool good = [] {
        mbedtls_x509_crt_init(&authority);
        const char *pem = private_pem;
        const auto *bytes = reinterpret_cast<const unsigned char *>(pem);
        return mbedtls_x509_crt_parse(&authority, bytes, std::strlen(pem) + 1) == 0;
    }();
    return good ? &authority : nullptr;
}

esp_err_t attach_private(void *config) {
    mbedtls_x509_crt *authority = private_authority();
    if (authority == nullptr) ESP_LOGE(TAG, "private_ca.pem is no certificate: no server will be trusted");
    auto *ssl = static_cast<mbedtls_ssl_config *>(config);
    mbedtls_ssl_conf_ca_chain(ssl, authority, nullptr);
    mbedtls_ssl_conf_verify(ssl, verify_private, nullptr);
    return authority != nullptr ? ESP_OK : ESP_FAIL;
}

}  // namespace

ServerTrust::Attach ServerTrust::attach() const {
    if (ca_pem == nullptr) return attach_public;
    private_pem = ca_pem;
    return attach_private;
}

}  // namespace fleet::esp
