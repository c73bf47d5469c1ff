// SPDX-License-Identifier: Apache-2.0
#include "fleet/boot.hpp"

#include <memory>
#include <utility>

namespace fleet {

Boot::Boot(const Machine &machine, std::string url)
    : machine_(machine), url_(std::move(url)), backoff_(*machine.system, 5'000, 300'000) {}

void Boot::start() {
    done_ = false;
    uuid_ = client_id(*machine_.store, *machine_.system);
    poll();
}

void Boot::poll() {
    machine_.executor->work([this] {
        // Shared, since std::function copies what it holds.
        auto answer = std::make_shared<const Result<PollAnswer>>(poll_server(machine_, url_, uuid_));
        machine_.executor->post([this, answer] { polled(*answer); });
    });
}

void Boot::polled(const Result<PollAnswer> &answer) {
    if (!answer.ok()) {
        failures_++;
        if (on_failed) on_failed(answer.status(), failures_);
        machine_.executor->post_after(backoff_.next(), [this] { poll(); });
        return;
    }
    failures_ = 0;
    backoff_.reset();
    const Activation &activation = answer.value().activation;
    done_ = !activation.due();
    if (on_answer) on_answer(answer.value());
    if (done_) return;
    challenge_ = activation.challenge;
    if (on_code) on_code(activation);
    ask(0);
}

void Boot::ask(int asked_before) {
    machine_.executor->work([this, asked_before, challenge = challenge_] {
        const Result<int> status = activate(machine_, url_, uuid_, challenge);
        machine_.executor->post([this, status, asked_before] { asked(status, asked_before + 1); });
    });
}

void Boot::asked(const Result<int> &status, int count) {
    const bool answered = status.ok();
    if (answered && status.value() == 200) {
        if (on_activated) on_activated();
        return poll();
    }
    const std::uint32_t wait = answered && status.value() == 202 ? kAskAgainMs : kAfterErrorMs;
    machine_.executor->post_after(wait, [this, count] { count < kAsks ? ask(count) : poll(); });
}

}  // namespace fleet
