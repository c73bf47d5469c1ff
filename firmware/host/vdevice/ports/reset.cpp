// SPDX-License-Identifier: Apache-2.0
#include "ports/posix_system.hpp"

#include <unistd.h>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

extern char **environ;

namespace fleet::host {

namespace {

constexpr char variable[] = "VDEVICE_RESET=";

bool is_ours(const char *entry) {
    constexpr std::size_t n = sizeof bootloader_variable - 1;
    return std::strncmp(entry, variable, sizeof variable - 1) == 0 ||
           (std::strncmp(entry, bootloader_variable, n) == 0 && entry[n] == '=');
}

char program[PATH_MAX];
char reason_entry[64];
std::vector<char *> arguments, environment;

}  // namespace

// Everything that execv needs is laid out beforehand: a signal handler may not
// allocate.
void keep_arguments(int, char **argv) {
    if (const char *bootloader = std::getenv(bootloader_variable)) {
        std::strncpy(program, bootloader, sizeof program - 1);
    } else {
        const ssize_t n = ::readlink("/proc/self/exe", program, sizeof program - 1);
        program[n > 0 ? n : 0] = '\0';
    }
    for (char **a = argv; *a != nullptr; ++a)
        arguments.push_back(*a);
    arguments.push_back(nullptr);
    for (char **e = environ; *e != nullptr; ++e) {
        if (!is_ours(*e)) environment.push_back(*e);
    }
    environment.push_back(reason_entry);
    environment.push_back(nullptr);
}

ResetReason reset_reason_from_environment() {
    const char *name = std::getenv("VDEVICE_RESET");
    for (int i = 0; name != nullptr && i <= static_cast<int>(ResetReason::other); ++i) {
        const auto reason = static_cast<ResetReason>(i);
        if (std::strcmp(name, to_string(reason)) == 0) return reason;
    }
    return ResetReason::power_on;
}

void run_in_place(int program_fd) {
    ::setenv(bootloader_variable, program, 1);
    ::fexecve(program_fd, arguments.data(), environ);
}

void reset(ResetReason reason) {
    std::strcpy(reason_entry, variable);
    std::strcat(reason_entry, to_string(reason));
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    ::close_range(3, ~0u, 0);  // the broker shall see that the connection ended
    ::execve(program, arguments.data(), environment.data());
    ::_exit(127);
}

}  // namespace fleet::host
