// SPDX-License-Identifier: Apache-2.0
#include "fleet/log_ring.hpp"

#include <cstring>

namespace fleet {
namespace {

constexpr std::uint32_t magic_number = 0x464c4f47;
constexpr std::size_t after_lines = 128;  // what a reply or notice still has to hold
constexpr const char *level_names[] = {"none", "error", "warn", "info", "debug", "verbose"};

}  // namespace

LogLevel parse_log_level(std::string_view word) {
    for (std::uint8_t i = 0; i < 6; i++) {
        if (word == level_names[i]) return static_cast<LogLevel>(i);
    }
    return LogLevel::info;
}

const char *to_string(LogLevel level) {
    return level_names[static_cast<std::uint8_t>(level) % 6];
}

LogRing::LogRing(MutableBytes memory)
    : head_(reinterpret_cast<Head *>(memory.data)),
      ring_(memory.data + sizeof(Head)),
      capacity_(static_cast<std::uint32_t>(memory.size - sizeof(Head))) {
    survived_ = intact();
    if (!survived_) reset();
}

std::uint32_t LogRing::checksum() const {
    std::uint32_t sum = magic_number;
    for (const std::uint32_t v : {head_->first, head_->count, head_->start, head_->used, capacity_}) {
        sum = (sum ^ v) * 0x01000193;
    }
    return sum;
}

// intact follows every line: memory that lost power holds anything.
bool LogRing::intact() const {
    if (head_->magic != magic_number || head_->check != checksum()) return false;
    if (head_->start >= capacity_ || head_->used > capacity_) return false;
    std::uint32_t used = 0;
    for (std::uint32_t i = 0; i < head_->count; i++) {
        if (used + line_head_bytes > head_->used) return false;
        used += line_at(head_->start + used).size();
    }
    return used == head_->used;
}

void LogRing::reset() {
    *head_ = {magic_number, 0, 0, 0, 0, 0};
    seal();
}

void LogRing::put(std::uint32_t at, const void *bytes, std::size_t size) {
    const auto *p = static_cast<const std::uint8_t *>(bytes);
    for (std::size_t i = 0; i < size; i++)
        ring_[(at + i) % capacity_] = p[i];
}

void LogRing::get(std::uint32_t at, void *bytes, std::size_t size) const {
    auto *p = static_cast<std::uint8_t *>(bytes);
    for (std::size_t i = 0; i < size; i++)
        p[i] = ring_[(at + i) % capacity_];
}

LogRing::Line LogRing::line_at(std::uint32_t at) const {
    std::uint8_t raw[line_head_bytes];
    get(at, raw, sizeof raw);
    Line line;
    std::memcpy(&line.uptime_ms, raw, 4);
    line.level = static_cast<LogLevel>(raw[4]);
    line.tag_size = raw[5];
    line.text_size = raw[6];
    return line;
}

void LogRing::drop_oldest() {
    const std::uint32_t size = line_at(head_->start).size();
    head_->start = (head_->start + size) % capacity_;
    head_->used -= size;
    head_->first++;
    head_->count--;
}

void LogRing::write(LogLevel level, std::string_view tag, std::string_view text, std::uint32_t uptime_ms) {
    if (!wanted(level, tag)) return;
    tag = tag.substr(0, 15);
    text = text.substr(0, max_line);
    std::uint8_t raw[line_head_bytes];
    std::memcpy(raw, &uptime_ms, 4);
    raw[4] = static_cast<std::uint8_t>(level);
    raw[5] = static_cast<std::uint8_t>(tag.size());
    raw[6] = static_cast<std::uint8_t>(text.size());
    const auto need = static_cast<std::uint32_t>(line_head_bytes + tag.size() + text.size());
    if (need > capacity_) return;
    while (head_->used + need > capacity_)
        drop_oldest();
    const std::uint32_t at = head_->start + head_->used;
    put(at, raw, sizeof raw);
    put(at + line_head_bytes, tag.data(), tag.size());
    put(at + static_cast<std::uint32_t>(line_head_bytes + tag.size()), text.data(), text.size());
    head_->used += need;
    head_->count++;
    seal();
}

bool LogRing::set_tag_level(std::string_view tag, LogLevel level) {
    tag = tag.substr(0, 15);
    std::size_t i = 0;
    while (i < tag_count_ && tag != tags_[i].name.data())
        i++;
    if (i == max_tags) return false;
    if (i == tag_count_) tag_count_++;
    tags_[i].name = {};
    std::memcpy(tags_[i].name.data(), tag.data(), tag.size());
    tags_[i].level = level;
    return true;
}

bool LogRing::wanted(LogLevel level, std::string_view tag) const {
    LogLevel most = level_;
    for (std::size_t i = 0; i < tag_count_; i++) {
        if (tag.substr(0, 15) == tags_[i].name.data()) most = tags_[i].level;
    }
    return level != LogLevel::none && level <= most;
}

bool LogRing::write_line(JsonWriter &w, std::uint32_t number, std::uint32_t at, const Line &line) const {
    char text[256];
    const JsonWriter::Mark before = w.mark();
    const std::uint8_t tag_size = line.tag_size < 16 ? line.tag_size : 15;
    get(at + line_head_bytes, text, tag_size);
    w.begin_object().member("n", number).member("t", line.uptime_ms).member("level", to_string(line.level));
    w.member("tag", std::string_view(text, tag_size));
    get(at + static_cast<std::uint32_t>(line_head_bytes) + line.tag_size, text, line.text_size);
    w.member("text", std::string_view(text, line.text_size)).end_object();
    if (!w.overflow() && w.room() >= after_lines) return true;
    w.rewind(before);
    return false;
}

std::uint32_t LogRing::tail(JsonWriter &w, std::uint32_t from, std::size_t most, LogLevel level) const {
    std::uint32_t at = head_->start;
    std::uint32_t number = head_->first;
    w.begin_array();
    for (std::uint32_t i = 0; i < head_->count; i++, number++) {
        const Line line = line_at(at);
        if (number >= from && line.level <= level) {
            if (most-- == 0 || !write_line(w, number, at, line)) break;
        }
        at = (at + line.size()) % capacity_;
    }
    w.end_array();
    return number;
}

}  // namespace fleet
