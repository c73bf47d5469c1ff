// SPDX-License-Identifier: Apache-2.0
// Remote configuration: a versioned set of values that takes effect at once, on
// trial. If the broker is not there when the trial ends, the values before come
// back: a bad setting cannot cut a device off for good.
#pragma once

#include "fleet/arguments.hpp"
#include "fleet/json_writer.hpp"
#include "fleet/ports.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace fleet {

class ConfigStore {
public:
    static constexpr std::size_t max_bytes = 2048;  // of a document

    // keys say what there is to configure and have to outlive the store. Every
    // key needs a default.
    ConfigStore(const Property *keys, std::size_t count, KvStore &store);

    // load takes up the confirmed values; a trial cut short by a restart is
    // taken back.
    void load();

    // propose applies {"version":N,"values":{…}}: values not named stay, null
    // means the default. N has to be above the version that is in force.
    Refusal propose(JsonView document, std::int64_t trial_ends_us);
    // tick ends the trial when its time is up.
    void tick(std::int64_t now_us, bool broker_up);

    std::int64_t integer(std::string_view key) const;
    bool boolean(std::string_view key) const { return integer(key) != 0; }
    std::string_view text(std::string_view key) const;

    std::int64_t version() const { return version_; }
    bool on_trial() const { return on_trial_; }
    std::int64_t reverted() const { return reverted_; }  // the last version taken back; 0 for none
    // unreported: a version was taken back, and reported has not been called since. That
    // holds over restarts.
    bool unreported() const { return unreported_; }
    void reported();
    // write writes {"version":…,"on_trial":…,"reverted":…,"values":{…}}.
    void write(JsonWriter &w) const;

    // Called after values changed: applied, confirmed or taken back.
    Hook<void()> on_change;

private:
    struct Value {
        std::int64_t number = 0;
        std::string text;
    };
    using Values = std::unique_ptr<Value[]>;

    void reset(std::size_t i, Values &values) const;
    Values defaults() const;
    Refusal merge(JsonView values, Values &into) const;
    Refusal merge_one(JsonView value, Values &into) const;
    std::size_t index(std::string_view key) const;
    bool is_default(std::size_t i) const;
    void write_values(JsonWriter &w, bool all) const;
    Status save(const char *key) const;
    bool read(const char *key);
    void read_confirmed();
    void confirm();
    void revert();
    void end_trial();
    void changed() const;

    const Property *keys_;
    std::size_t count_;
    KvStore &store_;
    Values values_;
    std::int64_t version_ = 0;
    std::int64_t reverted_ = 0;
    std::int64_t trial_ends_ = 0;
    bool on_trial_ = false;
    bool unreported_ = false;
};

}  // namespace fleet
