// SPDX-License-Identifier: Apache-2.0
// Any document: refused whole, or applied within the bounds of its keys, and
// what was stored loads again as it was.
#include "fleet/config_store.hpp"
#include "fleet/unit_config.hpp"
#include "fuzz.hpp"

#include <iterator>
#include <map>

using namespace fleet;

namespace {

class MemoryStore : public KvStore {
public:
    Result<std::int64_t> get_int(std::string_view) override { return Status{Code::not_found, ""}; }
    Result<std::string> get(std::string_view key) override {
        const auto found = values.find(key);
        if (found == values.end()) return Status{Code::not_found, ""};
        return found->second;
    }
    Status set_int(std::string_view, std::int64_t) override { return {}; }
    Status set(std::string_view key, std::string_view value) override {
        values[std::string(key)] = std::string(value);
        return {};
    }
    Status erase(std::string_view key) override {
        values.erase(std::string(key));
        return {};
    }
    Status commit() override { return {}; }
    std::map<std::string, std::string, std::less<>> values;
};

std::string written(const ConfigStore &c) {
    char buffer[2048];
    JsonWriter w(buffer, sizeof buffer);
    c.write(w);
    return std::string(w.view());
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view text = fuzz::text(data, size);
    MemoryStore stored;
    stored.values["config"] = std::string(text);  // anything may be in flash
    ConfigStore c(unit_config_fields, std::size(unit_config_fields), stored);
    c.load();
    fuzz::require(c.integer("heartbeat_s") >= 10 && c.integer("heartbeat_s") <= 3600);

    MemoryStore fresh;
    ConfigStore d(unit_config_fields, std::size(unit_config_fields), fresh);
    const std::string before = written(d);
    const Result<JsonDocument> document = JsonDocument::parse(text);
    if (!document.ok()) return 0;
    if (d.propose(document.value().root(), 0).refused()) {
        fuzz::require(written(d) == before && fresh.values.empty());
        return 0;
    }
    fuzz::require(d.integer("heartbeat_s") >= 10 && d.integer("heartbeat_s") <= 3600);
    d.tick(0, true);
    ConfigStore again(unit_config_fields, std::size(unit_config_fields), fresh);
    again.load();
    fuzz::require(written(again) == written(d));
    return 0;
}
