// SPDX-License-Identifier: Apache-2.0
#include "fleet/tool.hpp"

namespace fleet {
namespace {

const char *type_name(PropertyType type) {
    switch (type) {
        case PropertyType::boolean: return "boolean";
        case PropertyType::integer: return "integer";
        case PropertyType::text: break;
    }
    return "string";
}

void write_property(JsonWriter &w, const Property &p) {
    w.key(p.name).begin_object().member("type", type_name(p.type));
    if (p.has_default) {
        w.key("default");
        write_value(w, p.type, p.default_number, p.default_text);
    }
    if (p.has_range) w.member("minimum", p.minimum).member("maximum", p.maximum);
    if (*p.description) w.member("description", p.description);
    w.end_object();
}

void write_required(JsonWriter &w, const ToolInfo &info) {
    bool any = false;
    for (std::size_t i = 0; i < info.property_count; i++) {
        if (!info.properties[i].required) continue;
        if (!any) w.key("required").begin_array();
        any = true;
        w.text(info.properties[i].name);
    }
    if (any) w.end_array();
}

}  // namespace

void write_value(JsonWriter &w, PropertyType type, std::int64_t number, std::string_view text) {
    switch (type) {
        case PropertyType::boolean: w.boolean(number != 0); break;
        case PropertyType::integer: w.integer(number); break;
        case PropertyType::text: w.text(text); break;
    }
}

void write_tool(JsonWriter &w, const ToolInfo &info) {
    w.begin_object().member("name", info.name).member("description", info.description);
    w.begin_object("inputSchema").member("type", "object").begin_object("properties");
    for (std::size_t i = 0; i < info.property_count; i++)
        write_property(w, info.properties[i]);
    w.end_object();
    write_required(w, info);
    w.end_object();
    if (info.audience == Audience::user) {
        w.begin_object("annotations").key("audience").begin_array().text("user").end_array().end_object();
    }
    w.end_object();
}

Status ToolRegistry::add(const ToolInfo &info, ToolRun run, void *context) {
    if (count_ == max_tools) return {Code::no_space, "too many tools"};
    if (find(info.name)) return {Code::busy, "a tool of this name is there already"};
    if (std::string_view(info.name).size() > max_name) return {Code::invalid, "the tool's name is too long"};
    if (info.property_count > max_properties) return {Code::invalid, "the tool has too many properties"};
    JsonWriter measure = JsonWriter::measuring();
    write_tool(measure, info);
    if (measure.size() > max_tool_bytes) return {Code::no_space, "the tool's description is too long"};
    tools_[count_++] = {&info, run, context};
    return {};
}

const Tool *ToolRegistry::find(std::string_view name) const {
    for (const Tool &t : *this) {
        if (t.info->name == name) return &t;
    }
    return nullptr;
}

}  // namespace fleet
