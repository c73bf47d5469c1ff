// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/log_capture.hpp"

#include "guard.hpp"

#include "esp_attr.h"
#include "esp_log.h"
#include "esp_timer.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

namespace fleet::esp {

namespace {

constexpr TickType_t lock_timeout = pdMS_TO_TICKS(20);

__NOINIT_ATTR std::uint32_t kept_memory[CONFIG_FLEET_LOG_BYTES / 4];

SemaphoreHandle_t lock = nullptr;
std::unique_ptr<LogRing> ring;
vprintf_like_t console = nullptr;

// A line under way. ESP-IDF writes one in a call, the Wi-Fi library in three: head, text,
// newline. Under lock, and not on a stack: tasks that log may have small ones.
struct Pending {
    TaskHandle_t task = nullptr;  // that writes it; null: none
    std::uint32_t since = 0;
    std::size_t size = 0;
    char text[LogRing::max_line + 64] = {};
};

Pending pending[3];  // as many tasks may be in the middle of a line
std::uint32_t turns = 0;

LogLevel level_of(char letter) {
    switch (letter) {
        case 'E': return LogLevel::error;
        case 'W': return LogLevel::warn;
        case 'D': return LogLevel::debug;
        case 'V': return LogLevel::verbose;
        default: return LogLevel::info;
    }
}

// begins_line distinguishes a head from text: "W (1234) ".
bool begins_line(std::string_view text) {
    return text.size() > 3 && std::strchr("EWIDV", text[0]) != nullptr && text.substr(1, 2) == " (";
}

// write_first writes the first bytes of a line under way to the ring.
void write_first(Pending &p, std::size_t size) {
    const LogLine line = parse_log_line({p.text, size});
    if (!line.tag.empty() || !line.text.empty())
        ring->write(line.level, line.tag, line.text, static_cast<std::uint32_t>(esp_timer_get_time() / 1000));
    p.size -= size;
    std::memmove(p.text, p.text + size, p.size);
}

// pending_of finds the line of a task. A task that comes when all are taken ends the
// oldest one, which may be of a task that is no more.
Pending &pending_of(TaskHandle_t task) {
    Pending *found = nullptr;
    for (Pending &p : pending) {
        if (p.task == task) return p;
        if (found != nullptr && found->task == nullptr) continue;
        if (found == nullptr || p.task == nullptr || p.since < found->since) found = &p;
    }
    if (found->size > 0) write_first(*found, found->size);
    found->task = task;
    found->since = ++turns;
    return *found;
}

void keep(const char *format, va_list args) {
    Pending &p = pending_of(xTaskGetCurrentTaskHandle());
    char *piece = p.text + p.size;
    const std::size_t room = sizeof p.text - p.size;
    const int printed = std::vsnprintf(piece, room, format, args);
    const std::size_t size = printed < 0 ? 0 : static_cast<std::size_t>(printed);
    const std::size_t before = p.size;
    p.size += std::min(size, room - 1);
    if (before > 0 && begins_line({piece, p.size - before})) write_first(p, before);  // that has no newline
    if (size >= room || (p.size > 0 && p.text[p.size - 1] == '\n')) write_first(p, p.size);
    if (p.size == 0) p.task = nullptr;
}

int on_log(const char *format, va_list args) {
    va_list copy;
    va_copy(copy, args);
    // Whoever holds the lock may be logging itself, or be slow: the console gets
    // the line in any case.
    if (xSemaphoreTake(lock, lock_timeout) == pdTRUE) {
        keep(format, copy);
        xSemaphoreGive(lock);
    }
    va_end(copy);
    return console(format, args);
}

std::string_view without_ends(std::string_view line) {
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r'))
        line.remove_suffix(1);
    return line;
}

}  // namespace

LogLine parse_log_line(std::string_view line) {
    line = without_ends(line);
    const std::size_t open = line.find(" (");
    const std::size_t close = line.find(") ");
    const std::size_t colon = close == line.npos ? close : line.find(':', close);
    if (open != 1 || colon == line.npos) return {LogLevel::info, {}, line};
    const std::size_t text = colon + (line.substr(colon, 2) == ": " ? 2 : 1);  // the Wi-Fi library has no blank
    return {level_of(line[0]), line.substr(close + 2, colon - close - 2), line.substr(text)};
}

Status start_log_capture() {
    lock = xSemaphoreCreateMutex();
    auto *memory = reinterpret_cast<std::uint8_t *>(kept_memory);
    ring = std::make_unique<LogRing>(MutableBytes{memory, sizeof kept_memory});
    if (lock == nullptr) return {Code::no_memory, "no memory for the log's lock"};
    console = esp_log_set_vprintf(on_log);
    return {};
}

void with_log(FunctionRef<void(LogRing &)> use) {
    const Guard guard(lock);
    use(*ring);
}

}  // namespace fleet::esp
