// SPDX-License-Identifier: Apache-2.0
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
    m.project = std::string(v.text("project"));
    m.version = std::string(v.text("version"));
    m.sha256 = std::string(v.text("sha256"));
    m.size = v.integer_or("size", 0);
    m.chip = v.integer_or("chip", -1);
    m.secure_version = v.integer_or("secure_version", 0);
    m.not_before_ms = v.integer_or("not_before", 0);
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
