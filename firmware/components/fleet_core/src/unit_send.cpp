// SPDX-License-Identifier: Apache-2.0
// What a unit sends unasked, now or later.
#include "fleet/later.hpp"
#include "fleet/unit.hpp"

namespace fleet {

bool Unit::send(std::string_view message) {
    if (!online() || !machine_.transport->publish(broker_.publish_topic, Bytes(message), 0, false).ok()) return false;
    published_ = true;
    return true;
}

void Unit::send_notice(std::string_view message, Keep keep) {
    if (message.empty() || (outbox_.empty() && send(message)) || keep == Keep::no) return;
    (void)outbox_.push(message, keep);
    flush();
}

// flush sends one message and plans the next: a fleet that comes back does not
// send everything at once.
void Unit::flush() {
    if (flushing_ || outbox_.empty() || !online()) return;
    if (send(outbox_.front())) outbox_.pop();
    flushing_ = true;
    post_after(machine_, flush_ms, task<&Unit::flush_next>(this));
}

void Unit::flush_next() {
    flushing_ = false;
    flush();
}

void Unit::notify(std::string_view method, Keep keep, FunctionRef<void(JsonWriter &)> write) {
    send_notice(server_.notice(method, write), keep);
}

void Unit::report(const JobReport &job) {
    notify(job_method, Keep::always, [&](JsonWriter &w) { write_job(w, job, machine_.clock->unix_ms()); });
}

void Unit::report_config() {
    if (config_.unreported() && !online()) return;  // on_state reports it, after a restart too
    notify("notifications/config", Keep::always, [this](JsonWriter &w) { w.key("config"), config_.write(w); });
    config_.reported();
}

std::uint32_t Unit::heartbeat_ms() const {
    const auto period = static_cast<std::uint32_t>(config_.integer("heartbeat_s")) * 1000;
    std::uint16_t random = 0;
    machine_.system->random({reinterpret_cast<std::uint8_t *>(&random), sizeof random});
    // Within 10 % of the period, so that a fleet does not beat in step.
    return period - period / 20 + static_cast<std::uint32_t>(std::uint64_t{period / 10} * random / 65536);
}

void Unit::plan_heartbeat() {
    post_after(machine_, heartbeat_ms(), task<&Unit::heartbeat>(this));
}

void Unit::heartbeat() {
    const bool offline_too_long = machine_.clock->mono_us() - last_message_us_ > offline_restart_us;
    if (offline_too_long && !online() && ota_.state() == OtaState::idle) return restart();
    online() ? send_telemetry() : keep_heartbeat();
    plan_heartbeat();
}

Vitals Unit::vitals() const {
    Vitals v;
    v.boots = crashes_.boots();
    v.crashes = crashes_.crashes();
    v.safe_mode = crashes_.safe_mode();
    v.queued = static_cast<std::uint32_t>(outbox_.count());
    v.dropped = outbox_.dropped();
    v.reconnects = reconnects_;
    v.config_version = config_.version();
    v.birth = birth_due_;
    return v;
}

void Unit::send_telemetry() {
    if (!config_.boolean("telemetry")) return;
    const Vitals v = vitals();
    notify(telemetry_method, Keep::spare, [&](JsonWriter &w) { write_telemetry(w, machine_, v); });
    birth_due_ = false;
}

// keep_heartbeat keeps one now and then for the time after; without a clock
// its time would be unknown.
void Unit::keep_heartbeat() {
    const std::int64_t now = machine_.clock->mono_us();
    if (!config_.boolean("telemetry") || !machine_.clock->synced() || now - last_kept_us_ < offline_beat_us) return;
    last_kept_us_ = now;
    const Vitals v = vitals();
    notify(telemetry_method, Keep::spare, [&](JsonWriter &w) { write_brief(w, machine_, v); });
}

}  // namespace fleet
