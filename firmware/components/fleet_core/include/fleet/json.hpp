// SPDX-License-Identifier: Apache-2.0
// Reading JSON: an owner around cJSON and views into what it parsed.
#pragma once

#include "fleet/json_scan.hpp"
#include "fleet/status.hpp"

#include <cstdint>
#include <string_view>

struct cJSON;

namespace fleet {

// A JsonView points at a value inside a JsonDocument, or at nothing; asking
// nothing gives nothing, so that views chain. Keys match exactly: cJSON's own
// look-up ignores case.
class JsonView {
public:
    JsonView() = default;
    explicit JsonView(const cJSON *node) : node_(node) {}

    bool exists() const { return node_ != nullptr; }
    bool is_object() const;
    bool is_array() const;
    bool is_string() const;
    bool is_number() const;
    bool is_bool() const;
    bool is_null() const;

    JsonView member(const char *key) const;
    JsonView first() const;  // child of an object or array
    JsonView next() const;   // sibling
    std::string_view key() const;

    std::string_view text() const;  // "" unless a string
    bool is_true() const;
    // The same of a member.
    std::string_view text(const char *key) const;
    bool is_true(const char *key) const;
    std::int64_t integer_or(const char *key, std::int64_t fallback) const;
    // integer refuses fractions and what a double cannot hold exactly.
    Result<std::int64_t> integer() const;
    std::int64_t integer_or(std::int64_t fallback) const;

private:
    const cJSON *node_ = nullptr;
};

// A JsonDocument owns parsed text. It does not point into the text.
class JsonDocument {
public:
    static Result<JsonDocument> parse(std::string_view text, const JsonLimits &limits = {});

    JsonDocument() = default;
    ~JsonDocument();
    JsonDocument(JsonDocument &&other) noexcept : root_(other.root_) { other.root_ = nullptr; }
    JsonDocument &operator=(JsonDocument &&other) noexcept;

    JsonView root() const { return JsonView(root_); }

private:
    explicit JsonDocument(cJSON *root) : root_(root) {}
    cJSON *root_ = nullptr;
};

}  // namespace fleet
