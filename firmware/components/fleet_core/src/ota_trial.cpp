// SPDX-License-Identifier: Apache-2.0
// The half after the restart: the new image proves itself or makes way.
#include "fleet/ota_flow.hpp"

namespace fleet {

void OtaFlow::after_boot() {
    if (machine_.updater->running().state == SlotState::pending_verify) return begin_trial();
    judge_last();
}

// judge_last reports an upgrade whose restart lies behind, once.
void OtaFlow::judge_last() {
    KvStore &store = *machine_.store;
    const Result<std::string> wanted = store.get("ota_want");
    if (!wanted.ok()) return;
    job_ = store.get("ota_job").value();
    kind_ = store.get("ota_kind").value() == "rollback" ? "rollback" : "upgrade";
    why_ = store.get("ota_why").value();
    forget_switch();
    if (machine_.system->app().elf_sha256 == wanted.value()) return report(JobState::done);
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
    machine_.executor->post_after(policy_.trial_ms, [this] {
        if (state_ == OtaState::on_trial) reject({Code::timeout, "the new image did not get through to the broker"});
    });
}

// examine checks what needs no network: settings can be kept, and whatever the
// product adds.
Status OtaFlow::examine() {
    KvStore &store = *machine_.store;
    if (Status s = store.set_int("ota_selftest", machine_.clock->mono_us()); !s.ok()) return s;
    if (Status s = store.commit(); !s.ok()) return s;
    return self_test ? self_test() : Status{};
}

void OtaFlow::prove_online() {
    if (state_ != OtaState::on_trial) return;
    if (Status s = machine_.updater->mark_valid(); !s.ok()) return reject(s);
    state_ = OtaState::idle;
    judge_last();
}

// reject leaves the note of the switch in the store: the old image reports it.
void OtaFlow::reject(Status why) {
    (void)machine_.store->set("ota_why", why.why);
    (void)machine_.store->commit();
    (void)machine_.updater->mark_invalid();
    restart();
}

Status OtaFlow::roll_back(const std::string &job) {
    if (state_ != OtaState::idle && state_ != OtaState::on_trial) return {Code::busy, "an upgrade is under way"};
    const Result<SlotInfo> other = machine_.updater->other();
    if (!other.ok()) return other.status();
    if (other.value().state != SlotState::valid) return {Code::refused, "the other slot holds no sound image"};
    job_ = job;
    kind_ = "rollback";
    if (Status s = note_switch(other.value().elf_sha256); !s.ok()) return s;
    if (Status s = machine_.updater->boot_other(); !s.ok()) {
        forget_switch();
        return s;
    }
    report(JobState::accepted);
    restart();
    return {};
}

}  // namespace fleet
