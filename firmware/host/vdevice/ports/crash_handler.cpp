// SPDX-License-Identifier: Apache-2.0
#include "ports/file_core_dump.hpp"
#include "ports/posix_system.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>
#include <climits>
#include <csignal>
#include <cstring>

namespace fleet::host {

namespace {

constexpr int depth = 24;

char dump_path[PATH_MAX];

const char *name_of(int number) {
    switch (number) {
        case SIGSEGV: return "SIGSEGV";
        case SIGABRT: return "SIGABRT";
        case SIGBUS: return "SIGBUS";
        case SIGFPE: return "SIGFPE";
        case SIGILL: return "SIGILL";
        default: return "signal";
    }
}

void put(int fd, const char *text) {
    if (::write(fd, text, std::strlen(text)) < 0) return;  // nothing else can be done here
}

void put_hex(int fd, std::uintptr_t value) {
    char text[2 + 2 * sizeof value + 1] = "0x";
    for (std::size_t i = 0; i < 2 * sizeof value; ++i) {
        text[2 + i] = "0123456789abcdef"[value >> (8 * sizeof value - 4 - 4 * i) & 15];
    }
    text[2 + 2 * sizeof value] = '\0';
    put(fd, text);
}

// Only what is safe in a signal handler; backtrace was primed beforehand.
void crash(int number, siginfo_t *info, void *) {
    void *frames[depth];
    const int count = ::backtrace(frames, depth);
    const int fd = ::open(dump_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0) {
        put(fd, "task main, ");
        put(fd, name_of(number));
        put(fd, " at ");
        put_hex(fd, reinterpret_cast<std::uintptr_t>(info->si_addr));
        put(fd, ", pc ");
        put_hex(fd, count > 2 ? reinterpret_cast<std::uintptr_t>(frames[2]) : 0);
        put(fd, "\n");
        ::backtrace_symbols_fd(frames, count, fd);
        ::fsync(fd);
        ::close(fd);
    }
    reset(ResetReason::panic);
}

}  // namespace

void write_core_dump_on_crash(const std::string &path) {
    std::strncpy(dump_path, path.c_str(), sizeof dump_path - 1);
    void *prime[1];
    ::backtrace(prime, 1);  // loads libgcc now
    struct sigaction action{};
    action.sa_sigaction = crash;
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL})
        sigaction(number, &action, nullptr);
}

}  // namespace fleet::host
