// SPDX-License-Identifier: Apache-2.0
// The start of a device: poll, show the claim code until an operator takes the
// device, poll again. Ends with an answer that asks for no activation.
#pragma once

#include "fleet/backoff.hpp"
#include "fleet/boot_poll.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace fleet {

class Boot {
public:
    static constexpr std::uint32_t ask_again_ms = 3'000;
    static constexpr std::uint32_t after_error_ms = 10'000;
    static constexpr int max_asks = 10;  // then the code may be old: poll again

    Boot(const Machine &machine, std::string url);

    void start();
    // bring_forward makes the next poll after a failed one come within so long.
    void bring_forward(std::uint32_t ms);
    bool done() const { return done_; }
    int failures() const { return failures_; }  // of polls, in a row

    Hook<void(const PollAnswer &)> on_answer;
    Hook<void(const Activation &)> on_code;  // show it
    Hook<void()> on_activated;
    Hook<void(Status, int failures)> on_failed;

private:
    // Of each pair, the first runs on the worker; one is under way at a time.
    void poll();
    void polling();
    void polled();
    void ask();
    void asking();
    void asked();
    void failed();
    void plan(std::uint32_t ms);
    void poll_again();

    const Machine &machine_;
    std::string url_;
    std::string uuid_;
    // Written by the worker, read when it has posted that it is done.
    Status status_;
    std::unique_ptr<PollAnswer> answer_;
    std::string challenge_;
    int http_ = 0;  // the activation's answer
    Backoff backoff_;
    std::int64_t poll_us_ = 0;  // when the next poll after a failed one is due; 0: none is
    int failures_ = 0;
    int asks_ = 0;  // since the last poll
    bool done_ = false;
};

}  // namespace fleet
