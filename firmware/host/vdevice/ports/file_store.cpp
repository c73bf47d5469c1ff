// SPDX-License-Identifier: Apache-2.0
#include "ports/file_store.hpp"

#include "ports/file_io.hpp"

#include <cstdlib>

namespace fleet::host {

namespace {
constexpr std::size_t max_key = 15;      // NVS
constexpr std::size_t max_value = 4000;  // NVS

bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}
}  // namespace

FileStore::FileStore(std::string directory) : directory_(std::move(directory)) {}

// The file's name is the key; what is no plain character becomes %xx.
Result<std::string> FileStore::path_of(std::string_view key) const {
    if (key.empty() || key.size() > max_key) return Status{Code::invalid, "a key has 1 to 15 characters"};
    std::string path = directory_ + "/k";  // a key may be ".."
    for (const char c : key) {
        if (is_plain(c)) {
            path += c;
            continue;
        }
        const char *digits = "0123456789abcdef";
        const auto byte = static_cast<unsigned char>(c);
        path += {'%', digits[byte >> 4], digits[byte & 15]};
    }
    return path;
}

Result<std::string> FileStore::load(std::string_view key, char kind) {
    const Result<std::string> path = path_of(key);
    if (!path.ok()) return path;
    const std::lock_guard<std::mutex> lock(mutex_);
    Result<std::string> content = read_file(path.value(), max_value + 1);
    if (!content.ok()) return content;
    if (content.value().empty() || content.value()[0] != kind) {
        return Status{Code::not_found, "the key holds a value of another type"};
    }
    return content.value().substr(1);
}

Status FileStore::save(std::string_view key, const std::string &content) {
    const Result<std::string> path = path_of(key);
    if (!path.ok()) return path.status();
    const std::lock_guard<std::mutex> lock(mutex_);
    const Result<std::string> before = read_file(path.value(), max_value + 1);
    if (before.ok() && before.value() == content) return {};  // spares the flash
    return replace_file(path.value(), Bytes{content});
}

Result<std::int64_t> FileStore::get_int(std::string_view key) {
    const Result<std::string> text = load(key, 'i');
    if (!text.ok()) return text.status();
    char *end = nullptr;
    const long long value = std::strtoll(text.value().c_str(), &end, 10);
    if (text.value().empty() || *end != '\0') return Status{Code::corrupt, "a stored number is damaged"};
    return std::int64_t{value};
}

Result<std::string> FileStore::get(std::string_view key) {
    return load(key, 's');
}

Status FileStore::set_int(std::string_view key, std::int64_t value) {
    return save(key, "i" + std::to_string(value));
}

Status FileStore::set(std::string_view key, std::string_view value) {
    if (value.size() >= max_value) return {Code::no_space, "a stored text has fewer than 4000 bytes"};
    return save(key, "s" + std::string(value));
}

Status FileStore::erase(std::string_view key) {
    const Result<std::string> path = path_of(key);
    if (!path.ok()) return path.status();
    const std::lock_guard<std::mutex> lock(mutex_);
    return remove_file(path.value());
}

}  // namespace fleet::host
