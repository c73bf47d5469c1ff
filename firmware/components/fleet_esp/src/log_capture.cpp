// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/log_capture.hpp"

#include "guard.hpp"

#include "esp_attr.h"
#include "esp_log.h"
#include "esp_timer.h"
#include "sdkconfig.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <memory>

namespace fleet::esp {

namespace {

constexpr TickType_t lock_timeout = pdMS_TO_TICKS(20);

__NOINIT_ATTR std::uint32_t kept_memory[CONFIG_FLEET_LOG_BYTES / 4];

SemaphoreHandle_t lock = nullptr;
std::unique_ptr<LogRing> ring;
vprintf_like_t console = nullptr;
char line_buffer[LogRing::max_line + 64];  // under lock: tasks that log may have small stacks

LogLevel level_of(char letter) {
    switch (letter) {
        case 'E': return LogLevel::error;
        case 'W': return LogLevel::warn;
        case 'D': return LogLevel::debug;
        case 'V': return LogLevel::verbose;
        default: return LogLevel::info;
    }
}

void keep(const char *format, va_list args) {
    const int size = std::vsnprintf(line_buffer, sizeof line_buffer, format, args);
    if (size <= 0) return;
    const std::size_t length = std::min(static_cast<std::size_t>(size), sizeof line_buffer - 1);
    const LogLine line = parse_log_line({line_buffer, length});
    if (!ring->wanted(line.level, line.tag)) return;
    ring->write(line.level, line.tag, line.text, static_cast<std::uint32_t>(esp_timer_get_time() / 1000));
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
    const std::size_t colon = line.find(": ");
    if (open != 1 || close == line.npos || colon == line.npos || colon < close) return {LogLevel::info, {}, line};
    return {level_of(line[0]), line.substr(close + 2, colon - close - 2), line.substr(colon + 2)};
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
