// SPDX-License-Identifier: Apache-2.0
#include "device/device.hpp"

#include "fleet/url.hpp"

#include <cstdio>
#include <cstdlib>

namespace fleet::host {

namespace {

constexpr char tag[] = "vdevice";

std::string in(const Options &o, const char *name) {
    return o.state_dir + "/" + name;
}

// One line on standard output, whatever the text.
void print(const char *where, std::string_view title, std::string_view text) {
    std::string line = std::string(where) + ": " + std::string(title) + " | " + std::string(text);
    for (char &c : line) {
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    std::puts(line.c_str());
    std::fflush(stdout);
}

// OpenSSL, and so libmosquitto, reads SSL_CERT_FILE itself; libcurl does not.
HttpLimits http_limits(const Options &o) {
    HttpLimits limits;
    const char *system = std::getenv("SSL_CERT_FILE");
    limits.ca_file = o.ca_file.empty() && system != nullptr ? system : o.ca_file;
    return limits;
}

}  // namespace

Device::Device(const Options &options, const Board &board, Faults &faults, const Booted &booted)
    : options_(options),
      board_(board),
      faults_(faults),
      behaviour_(read_behaviour(booted.image.payload)),
      log_(in(options, "log.ring"), options.quiet,
           [this] { return static_cast<std::uint32_t>(clock_.mono_us() / 1000); }),
      transport_(executor_, {options.tls_port, options.ca_file}),
      curl_(http_limits(options)),
      http_(curl_, faults, !behaviour_.no_network),
      store_(in(options, "kv")),
      slots_({options.state_dir, board.chip_info.image_id, board.slot_size, 0}, booted),
      updater_(slots_, faults),
      system_(system(booted)),
      network_(!behaviour_.no_network, options.ip),
      identity_(KeyIdentity::load(in(options, "identity.key"))),
      core_dump_(in(options, "coredump.bin")),
      display_(screen()),
      camera_(clock_),
      machine_(machine()),
      unit_(machine_, unit_options()) {
    if (!options.broker_host.empty()) transport_.connect_to(options.broker_host, options.broker_port);
    // Or the new image would prove itself by the broker that the old one saved.
    if (behaviour_.no_network) transport_.unplug();
    kit_.machine = &machine_;
    kit_.unit = &unit_;
    kit_.with_log = [this](FunctionRef<void(LogRing &)> use) { log_.with(use); };
}

ScreenSettings Device::screen() const {
    ScreenSettings s;
    s.width = board_.screen.width;
    s.height = board_.screen.height;
    s.monochrome = board_.screen.monochrome;
    s.backlight = board_.screen.backlight;
    s.ppm_path = s.width > 0 ? in(options_, "screen.ppm") : "";
    s.on_text = [](std::string_view title, std::string_view text) { print("screen", title, text); };
    return s;
}

SystemSettings Device::system(const Booted &booted) const {
    SystemSettings s;
    s.app = booted.image.app;
    s.chip = board_.chip_info;
    s.mac = options_.mac;
    s.partitions = board_.partitions;
    s.reset_reason = reset_reason_from_environment();
    s.heap_size = board_.heap_size;
    return s;
}

UnitOptions Device::unit_options() const {
    UnitOptions o;
    o.poll_url = options_.ota_url;
    o.url_hosts = options_.url_hosts;
    o.ota.signed_only = options_.signed_only;
    o.ota.key = options_.key;
    o.ota.trial_ms = options_.trial_ms;
    o.ota.proof_ms = options_.proof_ms;
    o.ota.restart_ms = options_.restart_ms;
    o.config_trial_ms = options_.config_trial_ms;
    o.hello = options_.hello;
    return o;
}

Machine Device::machine() {
    Machine m;
    m.board.type = board_.type.c_str();
    m.board.name = board_.name.c_str();
    m.board.manufacturer = "fleetd";
    m.executor = &executor_;
    m.clock = &clock_;
    m.transport = &transport_;
    m.http = &http_;
    m.store = &store_;
    m.updater = &updater_;
    m.system = &system_;
    m.network = &network_;
    m.identity = &identity_;
    m.core_dump = &core_dump_;
    m.crypto = &crypto_;
    if (board_.screen.width > 0) m.display = &display_;
    if (board_.speaker) m.speaker = &speaker_;
    if (board_.led) m.led = &led_;
    if (board_.camera) m.camera = &camera_;
    if (board_.battery) m.battery = &battery_;
    return m;
}

void Device::run() {
    const AppInfo app = system_.app();
    log_.write(LogLevel::info, tag,
               app.project + " " + app.version + " on " + board_.name + ", " + options_.mac + ", reset by " +
                   to_string(system_.reset_reason()) + ", slot " + slots_.running().label + " " +
                   to_string(slots_.running().state) + ", " + options_.edition + " program");
    executor_.post([this] { begin(); });
    executor_.run();
    executor_.join();
}

void Device::begin() {
    restore_settings(machine_);
    start_status_screen(kit_);
    unit_.on_claim = [this](const Activation &a) {
        if (machine_.display == nullptr) print("serial", a.code, a.message);
    };
    if (behaviour_.selftest_fails) {
        unit_.ota().self_test = [] { return Status{Code::io, "the self-test of this image fails"}; };
    }
    misbehave();
    behave();
    log_failed_requests();
    unit_.start();
    log_broker();
    const bool safe = unit_.crashes().safe_mode();
    Status added = add_all_tools(unit_.tools(), kit_, safe);
    if (added.ok() && !safe) added = camera_tool_.add(unit_.tools(), kit_);
    if (!added.ok()) log_.write(LogLevel::error, tag, added.why);
    if (safe) log_.write(LogLevel::warn, tag, "too many crashes: safe mode");
}

// What the core keeps to itself, a person at the terminal wants to know. Called
// before anything runs: the worker reads it.
void Device::log_failed_requests() {
    http_.on_failure = [this](std::string_view url, const Status &why) {
        const Result<Url> to = parse_url(url);  // its path may hold a secret
        log_.write(LogLevel::warn, tag, std::string(to.ok() ? to.value().host : "URL") + ": " + why.why);
    };
}

// Called once the unit listens, which stays the one that acts.
void Device::log_broker() {
    unit_on_state_ = transport_.on_state;
    transport_.on_state = [this](TransportState state, Status why) {
        if (state == TransportState::up) log_.write(LogLevel::info, tag, "connected to the broker");
        if (!why.ok()) log_.write(LogLevel::warn, tag, std::string("broker: ") + why.why);
        unit_on_state_(state, why);
    };
}

void Device::stop() {
    executor_.post([this] {
        transport_.stop(true);
        executor_.stop();
    });
}

// behave does what the image says. In safe mode the application does not run.
void Device::behave() {
    if (behaviour_.crash_after_ms > 0) {
        executor_.post_after(static_cast<std::uint32_t>(behaviour_.crash_after_ms), [this] {
            if (!unit_.crashes().safe_mode()) std::abort();
        });
    }
    if (behaviour_.leak > 0) leak(behaviour_.leak * 1024);
}

void Device::leak(std::int64_t bytes) {
    if (unit_.crashes().safe_mode()) return;
    const std::int64_t taken = bytes * static_cast<std::int64_t>(leaked_.size());
    if (taken >= std::int64_t{board_.heap_size}) std::abort();  // as an allocation that fails does
    leaked_.emplace_back(static_cast<std::size_t>(bytes), 'x');
    executor_.post_after(1000, [this, bytes] { leak(bytes); });
}

// misbehave does what --fault says.
void Device::misbehave() {
    if (faults_.has("duplicate")) transport_.deliver_twice();
    if (const std::int64_t s = faults_.number("drop-mqtt"); s > 0) drop_again(static_cast<std::uint32_t>(s * 1000));
    if (const std::int64_t s = faults_.number("clock-jump"); s != 0) {
        executor_.post_after(static_cast<std::uint32_t>(faults_.after_colon("clock-jump", 10000)),
                             [this, s] { clock_.jump(s * 1000); });
    }
}

void Device::drop_again(std::uint32_t ms) {
    executor_.post_after(ms, [this, ms] {
        log_.write(LogLevel::warn, tag, "fault: the broker connection drops");
        transport_.cut();
        drop_again(ms);
    });
}

}  // namespace fleet::host
