// SPDX-License-Identifier: Apache-2.0
// The scan and cJSON agree: what the scan lets through, cJSON parses, and
// members found in the text are members of the document.
#include "fleet/envelope.hpp"
#include "fuzz.hpp"

using namespace fleet;

int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view text = fuzz::text(data, size);
    const bool scanned = scan_json(text, {}).ok();
    const Result<JsonDocument> document = JsonDocument::parse(text);
    fuzz::require(scanned == document.ok());
    const Result<Envelope> e = Envelope::parse(text);
    if (!e.ok()) return 0;
    const std::string_view raw = e.value().raw_payload();
    if (raw.empty()) return 0;
    fuzz::require(e.value().payload().exists());
    fuzz::require(scan_json(raw, {}).ok());
    fuzz::require(e.value().payload().is_object() == (raw[0] == '{'));
    fuzz::require(e.value().payload().is_string() == (raw[0] == '"'));
    return 0;
}
