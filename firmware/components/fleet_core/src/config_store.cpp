// SPDX-License-Identifier: Apache-2.0
#include "fleet/config_store.hpp"

#include "fleet/stored.hpp"

namespace fleet {
namespace {

constexpr char confirmed_key[] = "config";
constexpr char trial_key[] = "config_trial";
constexpr JsonLimits json_limits{ConfigStore::max_bytes, 4, 128};

}  // namespace

ConfigStore::ConfigStore(const Property *keys, std::size_t count, KvStore &store)
    : keys_(keys), count_(count), store_(store), values_(defaults()) {}

void ConfigStore::reset(std::size_t i, Values &values) const {
    values[i].number = keys_[i].default_number;
    values[i].text = keys_[i].default_text;
}

ConfigStore::Values ConfigStore::defaults() const {
    Values values(new Value[count_]);
    for (std::size_t i = 0; i < count_; i++)
        reset(i, values);
    return values;
}

std::size_t ConfigStore::index(std::string_view key) const {
    std::size_t i = 0;
    while (i < count_ && key != keys_[i].name)
        i++;
    return i;
}

Refusal ConfigStore::merge_one(JsonView value, Values &into) const {
    const std::size_t i = index(value.key());
    if (i == count_) return {"Unknown setting: ", value.key()};
    if (value.is_null()) {
        reset(i, into);
        return {};
    }
    std::int64_t number = 0;
    std::string_view text;
    if (Refusal r = check_value(keys_[i], value, number, text); r.refused()) return r;
    into[i].number = number;
    into[i].text = text;
    return {};
}

Refusal ConfigStore::merge(JsonView values, Values &into) const {
    if (!values.is_object()) return {"The configuration's values are no object", {}};
    for (JsonView v = values.first(); v.exists(); v = v.next()) {
        if (Refusal r = merge_one(v, into); r.refused()) return r;
    }
    return {};
}

bool ConfigStore::read(const char *key) {
    std::string text;
    if (!stored_text(store_, key, text)) return false;
    const Result<JsonDocument> document = JsonDocument::parse(text, json_limits);
    if (!document.ok()) return false;
    const JsonView root = document.value().root();
    values_ = defaults();
    // What a newer firmware wrote may hold keys that are unknown here: they are passed over.
    for (JsonView v = root.member("values").first(); v.exists(); v = v.next())
        (void)merge_one(v, values_);
    version_ = root.integer_or("version", 0);
    return true;
}

void ConfigStore::read_confirmed() {
    if (read(confirmed_key)) return;
    values_ = defaults();
    version_ = 0;
}

void ConfigStore::load() {
    if (read(trial_key)) {
        reverted_ = version_;
        unreported_ = true;
    }
    read_confirmed();
}

void ConfigStore::reported() {
    if (unreported_) end_trial();
}

Refusal ConfigStore::propose(JsonView document, std::int64_t trial_ends_us) {
    const std::int64_t version = document.integer_or("version", 0);
    if (version < 1) return {"The configuration has no version", {}};
    if (version <= version_) {
        return {"The configuration is not newer than version", {}, " ", true, version_};
    }
    Values values(new Value[count_]);
    for (std::size_t i = 0; i < count_; i++)
        values[i] = values_[i];
    if (Refusal r = merge(document.member("values"), values); r.refused()) return r;
    const std::int64_t version_before = version_;
    values_.swap(values);
    version_ = version;
    if (!save(trial_key).ok()) {
        values_.swap(values);
        version_ = version_before;
        return {"The configuration could not be stored", {}};
    }
    on_trial_ = true;
    unreported_ = false;
    trial_ends_ = trial_ends_us;
    changed();
    return {};
}

void ConfigStore::tick(std::int64_t now_us, bool broker_up) {
    if (!on_trial_ || now_us < trial_ends_) return;
    broker_up ? confirm() : revert();
}

void ConfigStore::end_trial() {
    static const char *const keys[] = {trial_key, nullptr};
    on_trial_ = unreported_ = false;
    erase_all(store_, keys);
}

void ConfigStore::confirm() {
    if (!save(confirmed_key).ok()) return revert();
    end_trial();
    changed();
}

void ConfigStore::revert() {
    reverted_ = version_;
    on_trial_ = false;
    unreported_ = true;
    read_confirmed();
    changed();
}

void ConfigStore::changed() const {
    if (on_change) on_change();
}

Status ConfigStore::save(const char *key) const {
    const std::unique_ptr<char[]> buffer(new char[max_bytes]);
    JsonWriter w(buffer.get(), max_bytes);
    w.begin_object().member("version", version_).key("values");
    write_values(w, false);
    w.end_object();
    if (w.overflow()) return {Code::no_space, "the configuration is too long"};
    if (Status s = store_.set(key, w.view()); !s.ok()) return s;
    return store_.commit();
}

bool ConfigStore::is_default(std::size_t i) const {
    return values_[i].number == keys_[i].default_number && values_[i].text == keys_[i].default_text;
}

void ConfigStore::write_values(JsonWriter &w, bool all) const {
    w.begin_object();
    for (std::size_t i = 0; i < count_; i++) {
        if (!all && is_default(i)) continue;
        w.key(keys_[i].name);
        write_value(w, keys_[i].type, values_[i].number, values_[i].text);
    }
    w.end_object();
}

void ConfigStore::write(JsonWriter &w) const {
    w.begin_object().member("version", version_).member("on_trial", on_trial_).member("reverted", reverted_);
    w.key("values");
    write_values(w, true);
    w.end_object();
}

std::int64_t ConfigStore::integer(std::string_view key) const {
    const std::size_t i = index(key);
    return i < count_ ? values_[i].number : 0;
}

std::string_view ConfigStore::text(std::string_view key) const {
    const std::size_t i = index(key);
    return i < count_ ? std::string_view(values_[i].text) : std::string_view();
}

}  // namespace fleet
