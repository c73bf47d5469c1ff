// SPDX-License-Identifier: Apache-2.0
// Writing JSON into a buffer of fixed size. What does not fit sets overflow and
// is not written; the writer never ends up with a half escaped character.
#pragma once

#include "fleet/span.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

class JsonWriter {
public:
    JsonWriter(char *buffer, std::size_t capacity) : buffer_(buffer), capacity_(capacity) {}
    static JsonWriter measuring() { return {nullptr, SIZE_MAX}; }  // counts, keeps nothing

    JsonWriter &begin_object() { return open('{'); }
    JsonWriter &end_object() { return close('}'); }
    JsonWriter &begin_array() { return open('['); }
    JsonWriter &end_array() { return close(']'); }
    JsonWriter &key(std::string_view name);
    JsonWriter &key(const char *name);
    JsonWriter &text(std::string_view value);  // bytes that are no UTF-8 become U+FFFD
    JsonWriter &integer(std::int64_t value);
    JsonWriter &boolean(bool value);
    JsonWriter &null() { return raw("null"); }
    JsonWriter &raw(std::string_view json);  // one value that is JSON already
    JsonWriter &base64(Bytes bytes);
    JsonWriter &skip(std::size_t bytes);  // one value that stands there already

    // A string made of parts: open_text, any number of append, close_text.
    JsonWriter &open_text();
    JsonWriter &append(std::string_view part);
    JsonWriter &digits(std::int64_t number);
    JsonWriter &close_text();

    // Everything between the two is JSON inside a string, as tool results are.
    JsonWriter &begin_embedded();
    JsonWriter &end_embedded();

    // One call each: a call site in flash costs more than what it saves here.
    JsonWriter &member(const char *name, bool value);
    JsonWriter &member(const char *name, const char *value);
    JsonWriter &member(const char *name, std::string_view value);
    JsonWriter &member(const char *name, int value);
    JsonWriter &member(const char *name, std::int64_t value);
    JsonWriter &member(const char *name, std::uint32_t value);
    JsonWriter &begin_object(const char *name);

    std::string_view view() const { return {buffer_, size_}; }
    std::size_t size() const { return size_; }
    bool overflow() const { return overflow_; }
    std::size_t room() const { return capacity_ - size_; }

    // A Mark takes the writer back to where it was, overflow included.
    struct Mark {
        std::size_t size;
        bool comma;
        bool embedded;
        bool overflow;
    };
    Mark mark() const { return {size_, comma_, embedded_, overflow_}; }
    void rewind(const Mark &m);

private:
    JsonWriter &open(char bracket);
    JsonWriter &close(char bracket);
    void comma();
    void copy(std::string_view bytes);  // all or nothing
    void copy_embedded(std::string_view bytes);
    void copy_plain(std::string_view bytes);
    void character(std::string_view c);
    void escaped(unsigned char c);

    char *buffer_;
    std::size_t capacity_;
    std::size_t size_ = 0;
    bool comma_ = false;  // a value stands before, in the same bracket
    bool embedded_ = false;
    bool overflow_ = false;
};

}  // namespace fleet
