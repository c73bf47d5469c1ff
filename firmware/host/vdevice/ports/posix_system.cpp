// SPDX-License-Identifier: Apache-2.0
#include "ports/posix_system.hpp"

#include "ports/file_io.hpp"

#include <malloc.h>
#include <sys/random.h>
#include <cstdlib>
#include <cstring>

namespace fleet::host {

namespace {

std::int64_t in_use() {
    const struct mallinfo2 now = mallinfo2();
    return static_cast<std::int64_t>(now.uordblks + now.hblkhd);  // large pieces are mapped
}

}  // namespace

PosixSystem::PosixSystem(SystemSettings settings)
    : settings_(std::move(settings)), base_(in_use()), least_(settings_.heap_size) {}

std::uint32_t PosixSystem::heap_free() const {
    const std::int64_t taken = in_use() - base_;
    const std::int64_t size = settings_.heap_size;
    const std::int64_t left = taken < 0 ? size : taken > size ? 0 : size - taken;
    const auto free = static_cast<std::uint32_t>(left);
    if (free < least_) least_ = free;
    return free;
}

std::uint32_t PosixSystem::heap_min() const {
    heap_free();
    return least_;
}

void PosixSystem::random(MutableBytes into) const {
    while (into.size > 0) {
        const ssize_t n = ::getrandom(into.data, into.size, 0);
        if (n <= 0) continue;  // a signal
        into = {into.data + n, into.size - static_cast<std::size_t>(n)};
    }
}

Result<int> PosixSystem::temperature() const {
    const Result<std::string> text = read_file("/sys/class/thermal/thermal_zone0/temp", 4096);
    if (!text.ok()) return Status{Code::unsupported, "no sensor"};
    return static_cast<int>(std::strtol(text.value().c_str(), nullptr, 10) / 100);
}

void PosixSystem::restart() {
    if (before_restart) before_restart();
    reset(ResetReason::software);
}

}  // namespace fleet::host
