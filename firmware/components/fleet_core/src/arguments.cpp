// SPDX-License-Identifier: Apache-2.0
#include "fleet/arguments.hpp"

#include "fleet/tool.hpp"

namespace fleet {
namespace {

Refusal wrong_type(const Property &p) {
    switch (p.type) {
        case PropertyType::boolean: return {"Argument ", p.name, " must be a boolean"};
        case PropertyType::integer: return {"Argument ", p.name, " must be an integer"};
        case PropertyType::text: break;
    }
    return {"Argument ", p.name, " must be a string"};
}

Refusal check_range(const Property &p, std::int64_t n) {
    if (!p.has_range) return {};
    if (n < p.minimum) return {"Argument ", p.name, " is below its minimum of ", true, p.minimum};
    if (n > p.maximum) return {"Argument ", p.name, " is above its maximum of ", true, p.maximum};
    return {};
}

}  // namespace

Refusal check_value(const Property &p, JsonView json, std::int64_t &number, std::string_view &text) {
    if (p.type == PropertyType::boolean) {
        number = json.is_true();
        return json.is_bool() ? Refusal{} : wrong_type(p);
    }
    if (p.type == PropertyType::integer) {
        const Result<std::int64_t> n = json.integer();
        if (!n.ok()) return wrong_type(p);
        number = n.value();
        return check_range(p, number);
    }
    if (!json.is_string()) return wrong_type(p);
    text = json.text();
    if (text.size() <= p.max_bytes) return {};
    return {"Argument ", p.name, " is longer in bytes than ", true, p.max_bytes};
}

Refusal Arguments::check_unknown(JsonView json) const {
    for (JsonView v = json.first(); v.exists(); v = v.next()) {
        if (!find(v.key())) return {"Unknown argument: ", v.key()};
    }
    return {};
}

Refusal Arguments::check(const ToolInfo &info, JsonView json) {
    count_ = info.property_count;
    for (std::size_t i = 0; i < count_; i++) {
        const Property &p = info.properties[i];
        values_[i] = {&p, p.has_default, p.default_number, p.default_text};
        const JsonView given = json.member(p.name);
        if (!given.exists()) {
            if (p.required) return {"Missing valid argument: ", p.name};
            continue;
        }
        values_[i].given = true;
        if (Refusal r = check_value(p, given, values_[i].number, values_[i].text); r.refused()) return r;
    }
    return check_unknown(json);
}

const Arguments::Value *Arguments::find(std::string_view name) const {
    for (std::size_t i = 0; i < count_; i++) {
        if (values_[i].property->name == name) return &values_[i];
    }
    return nullptr;
}

bool Arguments::has(std::string_view name) const {
    const Value *v = find(name);
    return v && v->given;
}

std::int64_t Arguments::integer(std::string_view name) const {
    const Value *v = find(name);
    return v ? v->number : 0;
}

std::string_view Arguments::text(std::string_view name) const {
    const Value *v = find(name);
    return v ? v->text : "";
}

}  // namespace fleet
