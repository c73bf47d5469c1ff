// SPDX-License-Identifier: Apache-2.0
#include "device/log.hpp"

#include "ports/file_io.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>

namespace fleet::host {

namespace {
constexpr std::size_t ring_bytes = 16 * 1024;
}

Log::Log(const std::string &path, bool quiet, std::function<std::uint32_t()> uptime_ms)
    : ring_(map(path)), quiet_(quiet), uptime_ms_(std::move(uptime_ms)) {}

Log::~Log() {
    if (mapped_ != nullptr) ::munmap(mapped_, ring_bytes);
}

MutableBytes Log::map(const std::string &path) {
    const Descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    if (file.open() && ::ftruncate(file.get(), ring_bytes) == 0) {
        void *at = ::mmap(nullptr, ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        if (at != MAP_FAILED) mapped_ = at;
    }
    if (mapped_ == nullptr) {
        fallback_.resize(ring_bytes);
        return {fallback_.data(), fallback_.size()};
    }
    return {static_cast<std::uint8_t *>(mapped_), ring_bytes};
}

void Log::write(LogLevel level, const char *tag, const std::string &text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ring_.write(level, tag, text, uptime_ms_());
    if (!quiet_) std::fprintf(stderr, "%c %s: %s\n", to_string(level)[0] - 'a' + 'A', tag, text.c_str());
}

void Log::with(FunctionRef<void(LogRing &)> use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    use(ring_);
}

}  // namespace fleet::host
