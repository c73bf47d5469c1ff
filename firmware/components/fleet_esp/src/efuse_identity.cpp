// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/efuse_identity.hpp"

#include "fleet/hex.hpp"
#include "fleet_esp/status_of.hpp"

#include "soc/soc_caps.h"

#if SOC_HMAC_SUPPORTED
#include "esp_efuse.h"
#include "esp_efuse_table.h"
#include "esp_hmac.h"
#endif

namespace fleet::esp {

#if SOC_HMAC_SUPPORTED

namespace {

constexpr std::size_t serial_size = 32;

bool is_printable(std::string_view text) {
    for (const char c : text) {
        if (c <= ' ' || c > '~') return false;
    }
    return true;
}

}  // namespace

// The block may hold something that is not ours: a serial has 32 printable
// characters, the form that servers of stock devices know.
std::string EfuseIdentity::serial() const {
    char raw[serial_size] = {};
    if (esp_efuse_read_field_blob(ESP_EFUSE_USER_DATA, raw, serial_size * 8) != ESP_OK) return {};
    const std::string_view text(raw, serial_size);
    return is_printable(text) ? std::string(text) : std::string();
}

Result<std::string> EfuseIdentity::hmac(std::string_view challenge) const {
    if (esp_efuse_get_key_purpose(EFUSE_BLK_KEY0) != ESP_EFUSE_KEY_PURPOSE_HMAC_UP) {
        return Status{Code::unsupported, "no key for proofs is burnt into this device"};
    }
    std::uint8_t digest[32] = {};
    const esp_err_t err = esp_hmac_calculate(HMAC_KEY0, challenge.data(), challenge.size(), digest);
    if (err != ESP_OK) return status_of(err, "the proof was not computed");
    return encode_hex({digest, sizeof digest});
}

#else

std::string EfuseIdentity::serial() const {
    return {};
}

Result<std::string> EfuseIdentity::hmac(std::string_view) const {
    return Status{Code::unsupported, "this chip has no HMAC peripheral"};
}

#endif

}  // namespace fleet::esp
