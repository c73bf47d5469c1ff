// SPDX-License-Identifier: Apache-2.0
// The half after the restart: the new image proves itself or makes way.
#include "fleet/later.hpp"
#include "fleet/ota_flow.hpp"
#include "fleet/stored.hpp"
#include "ota_keys.hpp"

namespace fleet {

void OtaFlow::after_boot() {
    if (machine_.updater->running().state == SlotState::pending_verify) return begin_trial();
    judge_last();
}

// judge_last reports an upgrade whose restart lies behind, once.
void OtaFlow::judge_last() {
    KvStore &store = *machine_.store;
    std::string wanted, kind;
    const bool switching = stored_text(store, wanted_key, wanted);
    if (!stored_text(store, job_key, job_) && !switching) return;
    (void)stored_text(store, kind_key, kind);
    (void)stored_text(store, why_key, why_);
    kind_ = kind == rollback_kind ? rollback_kind : upgrade_kind;
    forget_switch();
    if (!switching) return report(JobState::failed, {Code::canceled, "the device restarted before the switch"});
    if (machine_.system->app().elf_sha256 == wanted) return report(JobState::done);
    const Result<SlotInfo> other = machine_.updater->other();
    const SlotState state = other.ok() ? other.value().state : SlotState::undefined;
    if (state != SlotState::invalid && state != SlotState::aborted) {
        return report(JobState::failed, {Code::canceled, "the device restarted before the switch"});
    }
    const char *why = why_.empty() ? "the new image restarted before it had proved itself" : why_.c_str();
    report(JobState::failed, {Code::rolled_back, why});
}

void OtaFlow::begin_trial() {
    state_ = OtaState::on_trial;
    if (Status s = examine(); !s.ok()) return reject(s);
    post_after(machine_, policy_.trial_ms, task<&OtaFlow::trial_over>(this));
}

// examine checks what needs no network: settings can be kept, and whatever the
// product adds.
Status OtaFlow::examine() {
    KvStore &store = *machine_.store;
    Status s = store.set_int("ota_selftest", machine_.clock->mono_us());
    if (s.ok()) s = store.commit();
    return s.ok() && self_test ? self_test() : s;
}

void OtaFlow::prove_online() {
    if (state_ != OtaState::on_trial || online_since_us_ != not_online) return;
    online_since_us_ = machine_.clock->mono_us();
    judge_trial();
}

// judge_trial runs when the connection has been proved, and proof_ms later.
void OtaFlow::judge_trial() {
    if (state_ != OtaState::on_trial || online_since_us_ == not_online) return;
    const std::uint32_t need = policy_.proof_ms < policy_.trial_ms / 2 ? policy_.proof_ms : policy_.trial_ms / 2;
    const std::int64_t left = online_since_us_ / 1000 + need - machine_.clock->mono_us() / 1000;
    if (left > 0) return post_after(machine_, static_cast<std::uint32_t>(left), task<&OtaFlow::judge_trial>(this));
    Status s = examine();
    if (s.ok()) s = machine_.updater->mark_valid();
    if (!s.ok()) return reject(s);
    state_ = OtaState::idle;
    judge_last();
}

void OtaFlow::trial_over() {
    if (state_ == OtaState::on_trial) reject({Code::timeout, "the new image did not get through to the broker"});
}

// reject leaves the note of the switch in the store: the old image reports it.
void OtaFlow::reject(Status why) {
    put(*machine_.store, why_key, why.why);
    (void)machine_.updater->mark_invalid();
    restart();
}

Status OtaFlow::roll_back(std::string_view job) {
    if (state_ != OtaState::idle && state_ != OtaState::on_trial) return {Code::busy, "an upgrade is under way"};
    const Result<SlotInfo> other = machine_.updater->other();
    if (!other.ok()) return other.status();
    if (other.value().state != SlotState::valid) return {Code::refused, "the other slot holds no sound image"};
    job_ = job;
    kind_ = rollback_kind;
    Status s = note_switch(other.value().elf_sha256);
    if (!s.ok()) return s;
    s = machine_.updater->boot_other();
    if (!s.ok()) {
        forget_switch();
        return s;
    }
    report(JobState::accepted);
    restart();
    return {};
}

}  // namespace fleet
