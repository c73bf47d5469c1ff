// SPDX-License-Identifier: Apache-2.0
#include "ports/key_identity.hpp"

#include "ports/file_io.hpp"
#include "ports/openssl_crypto.hpp"

#include <cstdlib>

namespace fleet::host {

namespace {

constexpr std::size_t serial_length = 32, key_digits = 64;

std::string bytes_of(const std::string &hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes += static_cast<char>(std::strtol(hex.substr(i, 2).c_str(), nullptr, 16));
    }
    return bytes;
}

}  // namespace

KeyIdentity KeyIdentity::load(const std::string &path) {
    KeyIdentity identity;
    const Result<std::string> file = read_file(path, 4096);
    if (!file.ok()) return identity;
    const std::string &text = file.value();
    const std::size_t line = text.find('\n');
    if (line != serial_length || text.size() < line + 1 + key_digits) return identity;
    identity.serial_ = text.substr(0, line);
    identity.key_ = bytes_of(text.substr(line + 1, key_digits));
    return identity;
}

Result<std::string> KeyIdentity::hmac(std::string_view challenge) const {
    if (key_.empty()) return Status{Code::unsupported, "this device has no key"};
    return hmac_sha256_hex(Bytes{key_}, challenge);
}

}  // namespace fleet::host
