// SPDX-License-Identifier: Apache-2.0
#include "fleet/manifest.hpp"

#include "fleet/base64.hpp"
#include "fleet/json.hpp"

namespace fleet {
namespace {

Status read(std::string_view text, Manifest &m) {
    const Result<JsonDocument> document = JsonDocument::parse(text, {1024, 2, 32});
    if (!document.ok()) return document.status();
    const JsonView v = document.value().root();
    m.project = v.text("project");
    m.version = v.text("version");
    m.sha256 = v.text("sha256");
    m.size = v.integer_or("size", 0);
    m.chip = v.integer_or("chip", -1);
    m.secure_version = v.integer_or("secure_version", 0);
    m.rollback_from = v.text("rollback_from");
    m.not_before_ms = v.integer_or("not_before", 0);
    if (m.sha256.size() != 64 || m.size <= 0 || m.chip < 0) return {Code::invalid, "the manifest lacks a field"};
    return {};
}

}  // namespace

Status open_manifest(Crypto &crypto, const Ed25519Key &key, std::string_view text, std::string_view signature_base64,
                     Manifest &manifest) {
    Ed25519Signature signature{};
    const Result<std::size_t> n = decode_base64(signature_base64, {signature.data(), signature.size()});
    if (!n.ok() || n.value() != signature.size()) return {Code::corrupt, "the signature is malformed"};
    if (Status s = crypto.verify_ed25519(key, Bytes(text), signature); !s.ok()) return s;
    return read(text, manifest);
}

}  // namespace fleet
