// SPDX-License-Identifier: Apache-2.0
#include "fleet/boot.hpp"

#include "fleet/later.hpp"

#include <utility>

namespace fleet {

Boot::Boot(const Machine &machine, std::string url)
    : machine_(machine), url_(std::move(url)), backoff_(*machine.system, 5'000, 300'000) {}

void Boot::start() {
    done_ = false;
    poll_us_ = 0;
    uuid_ = client_id(*machine_.store, *machine_.system);
    poll();
}

void Boot::poll() {
    asks_ = 0;
    work(machine_, task<&Boot::polling>(this));
}

void Boot::polling() {
    answer_.reset(new PollAnswer);
    status_ = poll_server(machine_, url_, uuid_, *answer_);
    post(machine_, task<&Boot::polled>(this));
}

void Boot::polled() {
    const std::unique_ptr<PollAnswer> answer = std::move(answer_);
    if (!status_.ok()) return failed();
    failures_ = 0;
    backoff_.reset();
    const Activation &activation = answer->activation;
    done_ = !activation.due();
    if (on_answer) on_answer(*answer);
    if (done_) return;
    challenge_ = activation.challenge;
    if (on_code) on_code(activation);
    ask();
}

void Boot::failed() {
    failures_++;
    if (on_failed) on_failed(status_, failures_);
    plan(backoff_.next());
}

void Boot::plan(std::uint32_t ms) {
    poll_us_ = machine_.clock->mono_us() + std::int64_t{ms} * 1000;
    post_after(machine_, ms, task<&Boot::poll_again>(this));
}

void Boot::poll_again() {
    if (poll_us_ == 0 || machine_.clock->mono_us() < poll_us_) return;  // an older plan
    poll_us_ = 0;
    poll();
}

void Boot::bring_forward(std::uint32_t ms) {
    if (poll_us_ != 0 && machine_.clock->mono_us() + std::int64_t{ms} * 1000 < poll_us_) plan(ms);
}

void Boot::ask() {
    work(machine_, task<&Boot::asking>(this));
}

void Boot::asking() {
    const Result<int> status = activate(machine_, url_, uuid_, challenge_);
    http_ = status.ok() ? status.value() : 0;
    post(machine_, task<&Boot::asked>(this));
}

void Boot::asked() {
    if (http_ == 200) {
        if (on_activated) on_activated();
        return poll();
    }
    const std::uint32_t wait = http_ == 202 ? ask_again_ms : after_error_ms;
    post_after(machine_, wait, ++asks_ < max_asks ? task<&Boot::ask>(this) : task<&Boot::poll>(this));
}

}  // namespace fleet
