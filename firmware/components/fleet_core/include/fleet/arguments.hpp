// SPDX-License-Identifier: Apache-2.0
// The arguments of a call, checked against the tool's properties.
#pragma once

#include "fleet/json.hpp"
#include "fleet/property.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace fleet {

struct ToolInfo;

// Refusal says what is wrong with which argument: text + name + rest.
struct Refusal {
    const char *before = nullptr;  // null: nothing is wrong
    std::string_view name;
    const char *after = "";
    bool with_bound = false;
    std::int64_t bound = 0;

    bool refused() const { return before != nullptr; }
};

// check_value reads json as the property asks; text points into json.
Refusal check_value(const Property &property, JsonView json, std::int64_t &number, std::string_view &text);

class Arguments {
public:
    // check fills the arguments; json is the request's object, or nothing. It
    // refuses wrong types, fractions, what is out of range, and unknown names.
    Refusal check(const ToolInfo &info, JsonView json);

    // A name that the tool does not declare reads as false, 0 or "".
    bool has(std::string_view name) const;
    bool boolean(std::string_view name) const { return integer(name) != 0; }
    std::int64_t integer(std::string_view name) const;
    std::string_view text(std::string_view name) const;

private:
    struct Value {
        const Property *property = nullptr;
        bool given = false;
        std::int64_t number = 0;
        std::string_view text;
    };

    Refusal check_unknown(JsonView json) const;
    const Value *find(std::string_view name) const;

    std::array<Value, max_properties> values_;
    std::size_t count_ = 0;
};

}  // namespace fleet
