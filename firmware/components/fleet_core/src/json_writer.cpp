// SPDX-License-Identifier: Apache-2.0
#include "fleet/json_writer.hpp"

#include "fleet/base64.hpp"
#include "fleet/utf8.hpp"

#include <cstring>

namespace fleet {

void JsonWriter::copy(std::string_view bytes) {
    embedded_ ? copy_embedded(bytes) : copy_plain(bytes);
}

// What arrives here is JSON already: only quotes and backslashes need escaping.
void JsonWriter::copy_embedded(std::string_view bytes) {
    const std::size_t before = size_;
    for (const char c : bytes) {
        if (c == '"' || c == '\\') copy_plain("\\");
        copy_plain({&c, 1});
    }
    if (overflow_) size_ = before;
}

void JsonWriter::copy_plain(std::string_view bytes) {
    if (overflow_ || bytes.size() > capacity_ - size_) {
        overflow_ = true;
        return;
    }
    if (buffer_ && !bytes.empty()) std::memcpy(buffer_ + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
}

void JsonWriter::comma() {
    if (comma_) copy(",");
    comma_ = true;
}

JsonWriter &JsonWriter::open(char bracket) {
    comma();
    copy({&bracket, 1});
    comma_ = false;
    return *this;
}

JsonWriter &JsonWriter::close(char bracket) {
    copy({&bracket, 1});
    comma_ = true;
    return *this;
}

JsonWriter &JsonWriter::key(std::string_view name) {
    text(name);
    copy(":");
    comma_ = false;
    return *this;
}

JsonWriter &JsonWriter::key(const char *name) {
    return key(std::string_view(name));
}
JsonWriter &JsonWriter::member(const char *name, bool value) {
    return key(name).boolean(value);
}
JsonWriter &JsonWriter::member(const char *name, std::string_view value) {
    return key(name).text(value);
}
JsonWriter &JsonWriter::member(const char *name, const char *value) {
    return member(name, std::string_view(value));
}
JsonWriter &JsonWriter::member(const char *name, std::int64_t value) {
    return key(name).integer(value);
}
JsonWriter &JsonWriter::member(const char *name, int value) {
    return member(name, std::int64_t{value});
}
JsonWriter &JsonWriter::member(const char *name, std::uint32_t value) {
    return member(name, std::int64_t{value});
}
JsonWriter &JsonWriter::begin_object(const char *name) {
    return key(name).begin_object();
}

JsonWriter &JsonWriter::text(std::string_view value) {
    return open_text().append(value).close_text();
}

JsonWriter &JsonWriter::open_text() {
    comma();
    copy("\"");
    return *this;
}

JsonWriter &JsonWriter::close_text() {
    copy("\"");
    return *this;
}

JsonWriter &JsonWriter::begin_embedded() {
    open_text();
    embedded_ = true;
    comma_ = false;
    return *this;
}

JsonWriter &JsonWriter::end_embedded() {
    embedded_ = false;
    comma_ = true;
    return close_text();
}

JsonWriter &JsonWriter::append(std::string_view part) {
    while (!part.empty() && !overflow_) {
        const std::size_t n = utf8_length(part);
        if (n == 0) {
            copy("\xEF\xBF\xBD");
            part.remove_prefix(1);
            continue;
        }
        character(part.substr(0, n));
        part.remove_prefix(n);
    }
    return *this;
}

void JsonWriter::character(std::string_view c) {
    const auto first = static_cast<unsigned char>(c[0]);
    if (first == '"' || first == '\\' || first < 0x20) return escaped(first);
    copy(c);
}

void JsonWriter::escaped(unsigned char c) {
    switch (c) {
        case '"': return copy("\\\"");
        case '\\': return copy("\\\\");
        case '\n': return copy("\\n");
        case '\r': return copy("\\r");
        case '\t': return copy("\\t");
        default: break;
    }
    constexpr char hex_digits[] = "0123456789abcdef";
    const char unit[] = {'\\', 'u', '0', '0', hex_digits[c >> 4], hex_digits[c & 15]};
    copy({unit, sizeof unit});
}

// By hand: printf's 64-bit formats are left out of newlib's nano variant.
JsonWriter &JsonWriter::digits(std::int64_t value) {
    char text[20];
    std::size_t at = sizeof text;
    std::uint64_t n = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    do {
        text[--at] = static_cast<char>('0' + n % 10);
        n /= 10;
    } while (n > 0);
    if (value < 0) text[--at] = '-';
    copy({text + at, sizeof text - at});
    return *this;
}

JsonWriter &JsonWriter::integer(std::int64_t value) {
    comma();
    return digits(value);
}

JsonWriter &JsonWriter::boolean(bool value) {
    return raw(value ? "true" : "false");
}

JsonWriter &JsonWriter::raw(std::string_view json) {
    comma();
    copy(json);
    return *this;
}

JsonWriter &JsonWriter::skip(std::size_t bytes) {
    size_ += bytes;
    comma_ = true;
    return *this;
}

JsonWriter &JsonWriter::base64(Bytes bytes) {
    open_text();
    char group[4];
    for (std::size_t at = 0; at < bytes.size && !overflow_; at += 3) {
        const std::size_t n = bytes.size - at < 3 ? bytes.size - at : 3;
        encode_base64_group({bytes.data + at, n}, group);
        copy({group, sizeof group});
    }
    return close_text();
}

void JsonWriter::rewind(const Mark &m) {
    size_ = m.size;
    comma_ = m.comma;
    embedded_ = m.embedded;
    overflow_ = m.overflow;
}

}  // namespace fleet
