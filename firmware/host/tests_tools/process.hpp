// SPDX-License-Identifier: Apache-2.0
// The vdevice program as a separate process.
#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

namespace fleet::test {

class Process {
public:
    Process(const std::vector<std::string> &arguments, const std::string &log);
    ~Process();  // kills what still runs
    Process(const Process &) = delete;
    Process &operator=(const Process &) = delete;

    bool running();
    void kill(int signal);
    // eventually waits for what has to happen, on a machine however slow: the
    // limit only ends a test that fails.
    template <typename Condition>
    static bool eventually(Condition condition) {
        return wait_for(condition, 180'000);
    }
    // wait_for looks every 10 ms; false when the time is up. For what must not happen.
    template <typename Condition>
    static bool wait_for(Condition condition, int ms) {
        for (; ms > 0; ms -= 10) {
            if (condition()) return true;
            pause_10ms();
        }
        return condition();
    }
    int status() const { return status_; }  // as waitpid has it, once it does not run

private:
    static void pause_10ms();
    pid_t pid_;
    int status_ = 0;
};

}  // namespace fleet::test
