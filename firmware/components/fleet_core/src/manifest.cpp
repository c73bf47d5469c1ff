// SPDX-License-Identifier: MIT
#include "fleet/manifest.hpp"

#include "fleet/base64.hpp"
#include "fleet/json.hpp"

namespace fleet {
namespace {

Result<Manifest> read(std::string_view text) {
    const Result<JsonDocument> document = JsonDocument::parse(text, {1024, 2, 32});
    if (!document.ok()) return document.status();
    const JsonView v = document.value().root();
    Manifest m;
    m.project = std::string(v.member("project").text());
    m.version = std::string(v.member("version").text());
    m.sha256 = std::string(v.member("sha256").text());
    m.size = v.member("size").integer_or(0);
    m.chip = v.member("chip").integer_or(-1);
    m.secure_version = v.member("secure_version").integer_or(0);
    m.not_before_ms = v.member("not_before").integer_or(0);
    if (m.sha256.size() != 64 || m.size <= 0 || m.chip < 0) return Status{Code::invalid, "the manifest lacks a field"};
    return m;
}

}  // namespace

Result<Manifest> open_manifest(Crypto &crypto, const Ed25519Key &key, std::string_view text,
                               std::string_view signature_base64) {
    Ed25519Signature signature;
    const Result<std::size_t> n = decode_base64(signature_base64, {signature.data(), signature.size()});
    if (!n.ok() || n.value() != signature.size()) return Status{Code::corrupt, "the signature is malformed"};
    if (Status s = crypto.verify_ed25519(key, Bytes(text), signature); !s.ok()) return s;
    return read(text);
}

}  // namespace fleet
