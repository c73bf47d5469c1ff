// SPDX-License-Identifier: Apache-2.0
#include "ports/posix_clock.hpp"

#include <ctime>

namespace fleet::host {

namespace {
std::int64_t monotonic_us() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return std::int64_t{t.tv_sec} * 1000000 + t.tv_nsec / 1000;
}
}  // namespace

PosixClock::PosixClock() : began_us_(monotonic_us()) {}

std::int64_t PosixClock::mono_us() const {
    return monotonic_us() - began_us_;
}

std::int64_t PosixClock::unix_ms() const {
    return synced_ ? mono_us() / 1000 + offset_ms_ : 0;
}

bool PosixClock::synced() const {
    return synced_;
}

void PosixClock::set_unix_ms(std::int64_t ms, std::int32_t) {
    offset_ms_ = ms - mono_us() / 1000;
    synced_ = true;
}

}  // namespace fleet::host
