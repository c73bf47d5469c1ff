// SPDX-License-Identifier: Apache-2.0
#include "fleet/json.hpp"

// Debian puts the header into a folder, ESP-IDF does not.
#if __has_include(<cjson/cJSON.h>)
#include <cjson/cJSON.h>
#else
#include <cJSON.h>
#endif

#include <cmath>

namespace fleet {

bool JsonView::is_object() const {
    return cJSON_IsObject(node_);
}
bool JsonView::is_array() const {
    return cJSON_IsArray(node_);
}
bool JsonView::is_string() const {
    return cJSON_IsString(node_);
}
bool JsonView::is_number() const {
    return cJSON_IsNumber(node_);
}
bool JsonView::is_bool() const {
    return cJSON_IsBool(node_);
}
bool JsonView::is_null() const {
    return cJSON_IsNull(node_);
}
bool JsonView::is_true() const {
    return cJSON_IsTrue(node_);
}

JsonView JsonView::first() const {
    return JsonView(node_ ? node_->child : nullptr);
}
JsonView JsonView::next() const {
    return JsonView(node_ ? node_->next : nullptr);
}
std::string_view JsonView::key() const {
    return node_ && node_->string ? node_->string : "";
}
std::string_view JsonView::text() const {
    return is_string() ? node_->valuestring : "";
}

JsonView JsonView::member(const char *key) const {
    return JsonView(is_object() ? cJSON_GetObjectItemCaseSensitive(node_, key) : nullptr);
}

std::string_view JsonView::text(const char *key) const {
    return member(key).text();
}
bool JsonView::is_true(const char *key) const {
    return member(key).is_true();
}
std::int64_t JsonView::integer_or(const char *key, std::int64_t fallback) const {
    return member(key).integer_or(fallback);
}

Result<std::int64_t> JsonView::integer() const {
    constexpr double exact_limit = 9007199254740992.0;  // 2^53
    if (!is_number()) return Status{Code::invalid, "not a number"};
    const double d = node_->valuedouble;
    if (!(std::fabs(d) <= exact_limit) || std::floor(d) != d) return Status{Code::invalid, "not an integer"};
    return static_cast<std::int64_t>(d);
}

std::int64_t JsonView::integer_or(std::int64_t fallback) const {
    const Result<std::int64_t> n = integer();
    return n.ok() ? n.value() : fallback;
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const JsonLimits &limits) {
    if (Status s = scan_json(text, limits); !s.ok()) return s;
    cJSON *root = cJSON_ParseWithLength(text.data(), text.size());
    if (!root) return Status{Code::no_memory, "no memory to parse the message"};
    return JsonDocument(root);
}

JsonDocument::~JsonDocument() {
    cJSON_Delete(root_);
}

JsonDocument &JsonDocument::operator=(JsonDocument &&other) noexcept {
    if (this != &other) {
        cJSON_Delete(root_);
        root_ = other.root_;
        other.root_ = nullptr;
    }
    return *this;
}

}  // namespace fleet
