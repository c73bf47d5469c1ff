// SPDX-License-Identifier: Apache-2.0
#include "fleet/unit.hpp"

#include "fleet/telemetry.hpp"
#include "fleet/unit_config.hpp"
#include "fleet/version.hpp"

#include <iterator>
#include <utility>

namespace fleet {

Unit::Unit(const Machine &machine, UnitOptions options)
    : machine_(machine),
      options_(std::move(options)),
      app_(machine.system->app()),
      server_(tools_, {machine.board.name, app_.version.c_str(), options_.page_bytes}, machine.store, machine.clock),
      session_(server_),
      outbox_(options_.outbox_bytes),
      config_(kUnitConfig, std::size(kUnitConfig), *machine.store),
      ota_(machine, options_.ota),
      boot_(machine, options_.poll_url),
      backoff_(*machine.system) {}

void Unit::start() {
    crashes_.begin(machine_);
    config_.load();
    wire();
    wire_boot();
    ota_.after_boot();
    boot_.start();
    heartbeat();
}

void Unit::wire() {
    server_.set_send([this](std::string_view m) {
        if (online()) (void)machine_.transport->publish(broker_.publish_topic, Bytes(m), 0, false);
    });
    server_.set_send_notice([this](std::string_view m) { send_notice(m); });
    session_.on_heard = [this] {
        last_heard_us_ = machine_.clock->mono_us();
        backoff_.reset();
        ota_.prove_online();
    };
    session_.on_reboot = [this] { restart(); };
    session_.on_alert = [this](std::string_view status, std::string_view message) {
        if (machine_.display) machine_.display->show_text(status, message);
    };
    ota_.on_report = [this](const JobReport &r) { report(r); };
    ota_.before_restart = [this] { leave(); };
    config_.on_change = [this] {
        notify("notifications/config", [this](JsonWriter &w) { w.key("config"), config_.write(w); });
    };
    machine_.transport->on_message = [this](Bytes b) { session_.receive(b); };
    machine_.transport->on_state = [this](TransportState s, Status) { on_state(s); };
}

void Unit::wire_boot() {
    boot_.on_answer = [this](const PollAnswer &a) { answered(a); };
    boot_.on_failed = [this](Status, int failures) {
        if (failures >= 2 && !have_broker_) use_saved_broker();
    };
    boot_.on_code = [this](const Activation &a) {
        if (machine_.display) machine_.display->show_text(a.code, a.message);
        if (on_claim) on_claim(a);
    };
}

void Unit::answered(const PollAnswer &answer) {
    if (answer.time.unix_ms > 0) machine_.clock->set_unix_ms(answer.time.unix_ms, answer.time.zone_minutes);
    if (answer.broker_status.ok() && !answer.activation.due()) {
        broker_ = answer.broker;
        have_broker_ = true;
        (void)machine_.store->set("broker", save_broker(broker_));
        (void)machine_.store->commit();
        connect();
    }
    const FirmwareOrder &order = answer.firmware;
    if (order.due() && (order.force || newer_version(order.version, app_.version))) {
        if (Status s = upgrade(order, "poll"); !s.ok()) report({"poll", "upgrade", JobState::failed, 0, s});
    }
}

void Unit::use_saved_broker() {
    const Result<std::string> saved = machine_.store->get("broker");
    have_broker_ = saved.ok() && read_broker(saved.value(), broker_).ok();
    if (have_broker_) connect();
}

void Unit::connect() {
    if (link_ != Link::off || leaving_) return;
    link_ = Link::connecting;
    if (Status s = machine_.transport->start(broker_, {}, {}); !s.ok()) lost(false);
}

void Unit::on_state(TransportState state) {
    if (state == TransportState::connecting) return;
    if (state != TransportState::up) return lost(state == TransportState::refused);
    link_ = Link::up;
    refusals_ = 0;
    last_heard_us_ = machine_.clock->mono_us();
    send_telemetry();
    flush();
}

void Unit::lost(bool by_refusal) {
    if (link_ != Link::connecting && link_ != Link::up) return;
    link_ = Link::waiting;
    reconnects_++;
    if (by_refusal) refused();
    machine_.executor->post_after(backoff_.next(), [this] {
        link_ = Link::off;
        connect();
    });
}

// refused asks the server for other credentials now and then: these may have
// been taken back.
void Unit::refused() {
    backoff_.refused();
    if (++refusals_ % 3 == 0 && boot_.done()) boot_.start();
}

void Unit::send_notice(std::string_view message) {
    const bool sent = online() && outbox_.empty() &&
                      machine_.transport->publish(broker_.publish_topic, Bytes(message), 0, false).ok();
    if (sent) return;
    (void)outbox_.push(message);
    if (online()) flush();
}

// flush sends one message and plans the next: a fleet that comes back does not
// send everything at once.
void Unit::flush() {
    if (flushing_ || outbox_.empty() || !online()) return;
    if (machine_.transport->publish(broker_.publish_topic, Bytes(outbox_.front()), 0, false).ok()) outbox_.pop();
    flushing_ = true;
    machine_.executor->post_after(kFlushMs, [this] {
        flushing_ = false;
        flush();
    });
}

void Unit::notify(std::string_view method, const std::function<void(JsonWriter &)> &write) {
    server_.notify(method, write);
}

void Unit::report(const JobReport &job) {
    notify(kJobMethod, [&](JsonWriter &w) { write_job(w, job, machine_.clock->unix_ms()); });
}

Status Unit::upgrade(const FirmwareOrder &order, const std::string &job) {
    if (Status s = check_url(order.url); !s.ok()) return s;
    return ota_.start(order, job);
}

Refusal Unit::configure(JsonView document) {
    const Refusal r = config_.propose(document, machine_.clock->mono_us());
    if (r.refused()) return r;
    const auto ms = static_cast<std::uint32_t>(ConfigStore::kTrialUs / 1000);
    machine_.executor->post_after(ms, [this] { config_.tick(machine_.clock->mono_us(), online()); });
    return r;
}

void Unit::leave() {
    leaving_ = true;
    machine_.executor->post_after(500, [this] { machine_.transport->stop(true); });
}

void Unit::restart() {
    if (leaving_) return;
    leave();
    machine_.executor->post_after(1000, [this] { machine_.system->restart(); });
}

// The server that the device was set up with is trusted as it is.
Status Unit::check_url(std::string_view url) const {
    const Result<Url> home = parse_url(options_.poll_url);
    const bool http = config_.boolean("allow_http") || (home.ok() && !home.value().https);
    std::string hosts = options_.url_hosts;
    if (home.ok()) hosts += (hosts.empty() ? "" : ",") + std::string(home.value().host);
    const std::string_view more = config_.text("url_hosts");
    if (!more.empty()) hosts += "," + std::string(more);
    return fleet::check_url(url, {http, hosts});
}

std::uint32_t Unit::heartbeat_ms() const {
    const auto period = static_cast<std::uint32_t>(config_.integer("heartbeat_s")) * 1000;
    std::uint16_t random = 0;
    machine_.system->random({reinterpret_cast<std::uint8_t *>(&random), sizeof random});
    // Within 10 % of the period, so that a fleet does not beat in step.
    return period - period / 20 + static_cast<std::uint32_t>(std::uint64_t{period / 10} * random / 65536);
}

void Unit::heartbeat() {
    machine_.executor->post_after(heartbeat_ms(), [this] {
        const bool lonely = machine_.clock->mono_us() - last_heard_us_ > kLonelyUs;
        if (lonely && !online() && ota_.state() == OtaState::idle) return restart();
        if (online()) send_telemetry();
        heartbeat();
    });
}

void Unit::send_telemetry() {
    if (!config_.boolean("telemetry")) return;
    Vitals v;
    v.boots = crashes_.boots();
    v.crashes = crashes_.crashes();
    v.safe_mode = crashes_.safe_mode();
    v.queued = static_cast<std::uint32_t>(outbox_.count());
    v.dropped = outbox_.dropped();
    v.reconnects = reconnects_;
    v.config_version = config_.version();
    notify(kTelemetryMethod, [&](JsonWriter &w) { write_telemetry(w, machine_, v); });
}

}  // namespace fleet
