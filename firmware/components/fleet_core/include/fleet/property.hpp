// SPDX-License-Identifier: Apache-2.0
// One argument of a tool, built by name so that a description never ends up as
// a default: Property::Text("url").Required().Describe("…").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

enum class PropertyType : std::uint8_t { boolean, integer, text };

constexpr std::size_t max_properties = 8;

struct Property {
    const char *name = "";
    const char *description = "";
    const char *default_text = "";
    std::int64_t default_number = 0;  // of booleans, too
    std::int64_t minimum = 0;
    std::int64_t maximum = 0;
    std::uint16_t max_bytes = 1024;  // of a text
    PropertyType type = PropertyType::text;
    bool required = false;
    bool has_default = false;
    bool has_range = false;

    static constexpr Property Bool(const char *name) { return of(PropertyType::boolean, name); }
    static constexpr Property Int(const char *name) { return of(PropertyType::integer, name); }
    static constexpr Property Text(const char *name) { return of(PropertyType::text, name); }

    constexpr Property Required() const {
        Property p = *this;
        p.required = true;
        return p;
    }
    constexpr Property Range(std::int64_t low, std::int64_t high) const {
        Property p = *this;
        p.has_range = true;
        p.minimum = low;
        p.maximum = high;
        return p;
    }
    constexpr Property AtMost(std::uint16_t bytes) const {
        Property p = *this;
        p.max_bytes = bytes;
        return p;
    }
    constexpr Property Default(std::int64_t number) const {
        Property p = *this;
        p.has_default = true;
        p.default_number = number;
        return p;
    }
    constexpr Property DefaultText(const char *text) const {
        Property p = *this;
        p.has_default = true;
        p.default_text = text;
        return p;
    }
    constexpr Property Describe(const char *text) const {
        Property p = *this;
        p.description = text;
        return p;
    }

private:
    static constexpr Property of(PropertyType type, const char *name) {
        Property p;
        p.type = type;
        p.name = name;
        return p;
    }
};

class JsonWriter;
void write_value(JsonWriter &w, PropertyType type, std::int64_t number, std::string_view text);

}  // namespace fleet
