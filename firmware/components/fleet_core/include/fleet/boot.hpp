// SPDX-License-Identifier: Apache-2.0
// The start of a device: poll, show the claim code until an operator takes the
// device, poll again. Ends with an answer that asks for no activation.
#pragma once

#include "fleet/backoff.hpp"
#include "fleet/boot_poll.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace fleet {

class Boot {
public:
    static constexpr std::uint32_t kAskAgainMs = 3'000;
    static constexpr std::uint32_t kAfterErrorMs = 10'000;
    static constexpr int kAsks = 10;  // then the code may be old: poll again

    Boot(const Machine &machine, std::string url);

    void start();
    bool done() const { return done_; }
    int failures() const { return failures_; }  // of polls, in a row

    std::function<void(const PollAnswer &)> on_answer;
    std::function<void(const Activation &)> on_code;  // show it
    std::function<void()> on_activated;
    std::function<void(Status, int failures)> on_failed;

private:
    void poll();
    void polled(const Result<PollAnswer> &answer);
    void ask(int asked);
    void asked(const Result<int> &status, int asked);

    const Machine &machine_;
    std::string url_;
    std::string uuid_;
    std::string challenge_;
    Backoff backoff_;
    int failures_ = 0;
    bool done_ = false;
};

}  // namespace fleet
