// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <thread>

namespace fleet::test {

Process::Process(const std::vector<std::string> &arguments, const std::string &log) {
    std::vector<char *> argv;
    for (const std::string &a : arguments)
        argv.push_back(const_cast<char *>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
}

Process::~Process() {
    if (running()) kill(SIGKILL);
    while (running())
        pause_10ms();
}

bool Process::running() {
    if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ > 0;
}

void Process::kill(int signal) {
    if (pid_ > 0) ::kill(pid_, signal);
}

void Process::pause_10ms() {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace fleet::test
