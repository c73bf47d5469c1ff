// SPDX-License-Identifier: Apache-2.0
// What a unit does from its start on; what it sends is in unit_send.cpp.
#include "fleet/unit.hpp"

#include "fleet/later.hpp"
#include "fleet/stored.hpp"
#include "fleet/unit_config.hpp"
#include "fleet/version.hpp"

#include <iterator>
#include <utility>

namespace fleet {
namespace {

// What the broker publishes once the device is gone without a DISCONNECT.
constexpr char gone_will[] =
    "{\"session_id\":\"\",\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"method\":\"notifications/gone\","
    "\"params\":{}}}";

constexpr char hello_message[] =
    "{\"type\":\"hello\",\"version\":3,\"features\":{\"mcp\":true},\"transport\":\"udp\",\"audio_params\":{\"format\":"
    "\"opus\",\"sample_rate\":16000,\"channels\":1,\"frame_duration\":60}}";

}  // namespace

Unit::Unit(const Machine &machine, UnitOptions options)
    : machine_(machine),
      options_(std::move(options)),
      server_(tools_, {machine.board.name, machine.system->app().version.c_str(), options_.page_bytes, options_.rates},
              machine.store, machine.clock),
      session_(server_),
      outbox_(options_.outbox_bytes),
      config_(unit_config_fields, std::size(unit_config_fields), *machine.store),
      ota_(machine, options_.ota),
      boot_(machine, options_.poll_url),
      backoff_(*machine.system) {}

void Unit::start() {
    crashes_.begin(machine_);
    config_.load();
    wire();
    wire_boot();
    ota_.after_boot();
    options_.first_poll_jitter_ms == 0
        ? first_poll()
        : post_after(machine_, random_below(options_.first_poll_jitter_ms), task<&Unit::first_poll>(this));
    plan_heartbeat();
}

void Unit::first_poll() {
    boot_.start();
}

std::uint32_t Unit::random_below(std::uint32_t most) const {
    std::uint32_t random = 0;
    machine_.system->random({reinterpret_cast<std::uint8_t *>(&random), sizeof random});
    return static_cast<std::uint32_t>(std::uint64_t{random} * most >> 32);
}

void Unit::wire() {
    server_.set_send([this](std::string_view m) { (void)send(m); });
    session_.on_reboot = [this] { restart(); };
    session_.on_alert = [this](std::string_view status, std::string_view message) {
        if (machine_.display) machine_.display->show_text(status, message);
    };
    ota_.on_report = [this](const JobReport &r) { report(r); };
    ota_.before_restart = [this] { leave(); };
    config_.on_change = [this] { report_config(); };
    machine_.transport->on_message = [this](Bytes b) { received(b); };
    machine_.transport->on_too_long = [this] { server_.refuse_text({Code::invalid, "message is too long"}); };
    machine_.transport->on_stopped = [this] { restart_now(); };
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
        put(*machine_.store, "broker", save_broker(broker_));
        connect();
    } else if (answer.broker_status.code == Code::not_found && !answer.activation.due() && !have_broker_) {
        use_saved_broker();  // the server gives none now: those from before may be good
    }
    offered(answer.firmware);
}

void Unit::offered(const FirmwareOrder &order) {
    if (!order.due()) return;
    if (!order.force && !newer_version(order.version, machine_.system->app().version)) return;
    const std::string_view job = order.job.empty() ? std::string_view("poll") : order.job;
    if (Status s = upgrade(order, job); !s.ok()) report({job, "upgrade", JobState::failed, 0, s});
}

void Unit::use_saved_broker() {
    std::string saved;
    have_broker_ = stored_text(*machine_.store, "broker", saved) && read_broker(saved, broker_).ok();
    if (have_broker_) connect();
}

void Unit::connect() {
    if (link_ != Link::off || leaving_) return;
    link_ = Link::connecting;
    connect_us_ = machine_.clock->mono_us();
    judge_connect();
    BrokerSettings broker = broker_;
    broker.password = connect_password(machine_, broker_);
    if (Status s = machine_.transport->start(broker, broker_.publish_topic, gone_will); !s.ok()) lost(false);
}

// judge_connect gives an attempt up that neither succeeds nor fails.
void Unit::judge_connect() {
    if (judging_connect_) return;  // looks later, and then again
    judging_connect_ = true;
    const std::int64_t gone_ms = (machine_.clock->mono_us() - connect_us_) / 1000;
    post_after(machine_, connect_ms - static_cast<std::uint32_t>(gone_ms), task<&Unit::connect_overdue>(this));
}

void Unit::connect_overdue() {
    judging_connect_ = false;
    if (link_ != Link::connecting) return;
    if (machine_.clock->mono_us() - connect_us_ < std::int64_t{connect_ms} * 1000) return judge_connect();
    machine_.transport->stop(false);
    lost(false);
}

void Unit::plan_reconnect(std::uint32_t ms) {
    reconnect_us_ = machine_.clock->mono_us() + std::int64_t{ms} * 1000;
    post_after(machine_, ms, task<&Unit::reconnect>(this));
}

void Unit::network_up() {
    const std::uint32_t ms = random_below(network_up_wait_ms);
    boot_.bring_forward(ms);
    if (link_ != Link::waiting || refusals_ > 0) return;
    if (machine_.clock->mono_us() + std::int64_t{ms} * 1000 < reconnect_us_) plan_reconnect(ms);
}

void Unit::reconnect() {
    if (link_ != Link::waiting || machine_.clock->mono_us() < reconnect_us_) return;  // an older plan
    link_ = Link::off;
    connect();
}

void Unit::on_state(TransportState state) {
    if (state == TransportState::connecting) return;
    if (state != TransportState::up) return lost(state == TransportState::refused);
    link_ = Link::up;
    refusals_ = 0;
    last_message_us_ = machine_.clock->mono_us();
    published_ = false;
    birth_due_ = true;
    if (options_.hello) (void)send(hello_message);
    send_telemetry();
    if (config_.unreported()) report_config();
    flush();
}

// The way to the server and back is proved by what arrives after this device
// said something on the same connection.
void Unit::received(Bytes message) {
    last_message_us_ = machine_.clock->mono_us();
    backoff_.reset();
    if (published_) ota_.prove_online();
    session_.receive(message);
}

void Unit::lost(bool by_refusal) {
    if (link_ != Link::connecting && link_ != Link::up) return;
    link_ = Link::waiting;
    reconnects_++;
    ota_.lose_online();
    if (by_refusal) refused();
    plan_reconnect(backoff_.next());
}

// refused asks the server for other credentials now and then: these may have
// been taken back. Where the time is signed, the clock may be what is wrong.
void Unit::refused() {
    backoff_.refused();
    if ((++refusals_ % 3 == 0 || broker_.sign_connect) && boot_.done()) boot_.start();
}

Status Unit::upgrade(const FirmwareOrder &order, std::string_view job) {
    if (Status s = check_url(order.url); !s.ok()) return s;
    return ota_.start(order, job);
}

Refusal Unit::configure(JsonView document) {
    const std::uint32_t trial_ms = options_.config_trial_ms;
    const Refusal r = config_.propose(document, machine_.clock->mono_us() + std::int64_t{trial_ms} * 1000);
    if (!r.refused()) post_after(machine_, trial_ms, task<&Unit::judge_config>(this));
    return r;
}

void Unit::judge_config() {
    config_.tick(machine_.clock->mono_us(), online());
}

void Unit::leave() {
    leaving_ = true;
    post_after(machine_, goodbye_ms, task<&Unit::goodbye>(this));
}

void Unit::goodbye() {
    machine_.transport->stop(true);
}

void Unit::restart() {
    if (leaving_) return;
    leave();
    restarting_ = true;
    post_after(machine_, restart_ms, task<&Unit::restart_now>(this));
}

void Unit::restart_now() {
    if (!restarting_) return;  // the goodbye was over sooner
    restarting_ = false;
    machine_.system->restart();
}

// The server that the device was set up with is trusted as it is.
Status Unit::check_url(std::string_view url) const {
    const Result<Url> home = parse_url(options_.poll_url);
    const bool http = config_.boolean("allow_http") || (home.ok() && !home.value().https);
    return fleet::check_url(url, {http, {options_.url_hosts, config_.text("url_hosts"), home.value().host}});
}

}  // namespace fleet
