// SPDX-License-Identifier: Apache-2.0
// The last lines of the log, in memory that may survive a restart.
//
// The ring lives in memory that the caller gives, on ESP32 in no-init RAM, and
// goes on where it was when that memory still holds one. Tasks other than the
// executor's log too: the caller locks.
#pragma once

#include "fleet/json_writer.hpp"
#include "fleet/span.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

enum class LogLevel : std::uint8_t { none, error, warn, info, debug, verbose };

// parse_log_level gives info for a word it does not know.
LogLevel parse_log_level(std::string_view word);
const char *to_string(LogLevel level);

class LogRing {
public:
    static constexpr std::size_t max_line = 200;  // longer ones are cut
    static constexpr std::size_t max_tags = 8;    // with a level of their own

    explicit LogRing(MutableBytes memory);

    void write(LogLevel level, std::string_view tag, std::string_view text, std::uint32_t uptime_ms);
    void set_level(LogLevel level) { level_ = level; }
    // set_tag_level is false when there are too many tags already.
    bool set_tag_level(std::string_view tag, LogLevel level);
    bool wanted(LogLevel level, std::string_view tag) const;

    // tail writes an array of lines from the number `from` on, at most `most` of
    // those up to `level`, as far as they fit, and gives the number to ask for next.
    std::uint32_t tail(JsonWriter &w, std::uint32_t from, std::size_t most, LogLevel level = LogLevel::verbose) const;
    std::uint32_t first() const { return head_->first; }
    std::uint32_t next() const { return head_->first + head_->count; }
    bool survived() const { return survived_; }

private:
    struct Head {
        std::uint32_t magic, first, count, start, used, check;
    };
    struct Line {
        std::uint32_t uptime_ms;
        LogLevel level;
        std::uint8_t tag_size;
        std::uint8_t text_size;
        std::uint32_t size() const { return static_cast<std::uint32_t>(line_head_bytes) + tag_size + text_size; }
    };
    struct Tag {
        std::array<char, 16> name;
        LogLevel level;
    };
    static constexpr std::size_t line_head_bytes = 7;

    bool intact() const;
    std::uint32_t checksum() const;
    void seal() { head_->check = checksum(); }
    void reset();
    void drop_oldest();
    void put(std::uint32_t at, const void *bytes, std::size_t size);
    void get(std::uint32_t at, void *bytes, std::size_t size) const;
    Line line_at(std::uint32_t at) const;
    bool write_line(JsonWriter &w, std::uint32_t number, std::uint32_t at, const Line &line) const;

    Head *head_;
    std::uint8_t *ring_;
    std::uint32_t capacity_;
    LogLevel level_ = LogLevel::info;
    std::array<Tag, max_tags> tags_{};
    std::size_t tag_count_ = 0;
    bool survived_ = false;
};

}  // namespace fleet
