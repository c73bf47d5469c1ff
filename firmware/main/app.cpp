// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include "fleet/camera_tool.hpp"
#include "fleet/hex.hpp"
#include "fleet_esp/announce.hpp"
#include "fleet_esp/board.hpp"
#include "fleet_esp/log_capture.hpp"
#include "fleet_esp/wifi_scan.hpp"

#include "esp_log.h"
#include "sdkconfig.h"

#if CONFIG_FLEET_PRIVATE_CA
extern const char private_ca_pem[] asm("_binary_private_ca_pem_start");
#endif

namespace fleet::esp {

namespace {

constexpr const char *TAG = "fleet";
// A device that knows a Wi-Fi begins without it after this time: an image on
// trial has to be judged even if it never gets a connection.
constexpr std::uint32_t network_wait_ms = 60000;
constexpr std::uint32_t first_poll_jitter_ms = 3000;
// While the known network is gone: provisioning so long, then the network again so long.
constexpr std::uint32_t minute_ms = 60000;
constexpr int invite_minutes = 5;
constexpr int retry_minutes = 2;

ServerTrust trust() {
    ServerTrust t;
#if CONFIG_FLEET_PRIVATE_CA
    t.ca_pem = private_ca_pem;
#endif
    return t;
}

HttpOptions http_options() {
    HttpOptions o;
    o.trust = trust();
    return o;
}

MqttOptions mqtt_options() {
    MqttOptions o;
    o.trust = trust();
    o.buffer = CONFIG_FLEET_MQTT_BUFFER;
    o.message_limit = CONFIG_FLEET_MESSAGE_LIMIT;
    return o;
}

OtaPolicy ota_policy() {
    OtaPolicy policy;
    policy.trial_ms = CONFIG_FLEET_TRIAL_S * 1000;
    policy.proof_ms = CONFIG_FLEET_PROOF_S * 1000;
#if CONFIG_FLEET_SIGNED_RELEASES
    policy.signed_only = true;
    const Status key = decode_hex(CONFIG_FLEET_RELEASE_KEY, {policy.key.data(), policy.key.size()});
    if (!key.ok()) ESP_LOGE(TAG, "FLEET_RELEASE_KEY is no key: no image will be taken");
#endif
    return policy;
}

// warn is for what the device can do without.
void warn(const Status &status) {
    if (!status.ok()) ESP_LOGW(TAG, "%s", status.why);
}

}  // namespace

App::App(TaskExecutor &executor, KvStore &store)
    : executor_(executor),
      store_(store),
      transport_(executor, mqtt_options()),
      http_(http_options()),
      network_(executor, system_),
      provisioning_(executor, network_, system_),
      serial_(executor),
      button_(executor),
      machine_(machine()) {}

Machine App::machine() {
    Machine m;
    m.board = board_info();
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
    return m;
}

UnitOptions App::options() const {
    UnitOptions o;
    const Result<std::string> url = store_.get("boot_url");
    o.poll_url = url.ok() ? url.value() : CONFIG_FLEET_BOOT_URL;
    o.ota = ota_policy();
    o.page_bytes = CONFIG_FLEET_PAGE_BYTES;
#if CONFIG_FLEET_HELLO
    o.hello = true;
#endif
    o.outbox_bytes = CONFIG_FLEET_OUTBOX_BYTES;
    o.url_hosts = CONFIG_FLEET_URL_HOSTS;
    o.first_poll_jitter_ms = first_poll_jitter_ms;
    return o;
}

void App::start() {
    const AppInfo app = system_.app();
    ESP_LOGI(TAG, "%s %s on %s, %s, reset by %s", app.project.c_str(), app.version.c_str(), machine_.board.name,
             system_.mac().c_str(), to_string(system_.reset_reason()));
    clock_.remember(store_, executor_);
    start_board(machine_);
    restore_settings(machine_);
    unit_ = std::make_unique<Unit>(machine_, options());
    unit_->on_claim = [this](const Activation &activation) { show_claim(activation); };
    if (board_button() >= 0) warn(button_.start(board_button(), [this] { start_over(); }));
    start_network();
    start_improv();
}

void App::start_network() {
    network_.on_change = [this](bool up) {
        if (!up) return;
        start_unit();
        unit_->network_up();
    };
    provisioning_.on_invite = [this](const Invitation &invitation) { invite(invitation); };
    provisioning_.on_fleet = [this](const std::string &url) { change_fleet(url); };
    const Status status = network_.start(host_name(system_).c_str());
    warn(status);
    warn(clock_.start_sntp(CONFIG_FLEET_SNTP_SERVER));
    if (status.ok() && !network_.knows_network()) {
        return warn(provisioning_.start(CONFIG_FLEET_PROV_NAME, setup_page(machine_.display != nullptr)));
    }
    network_.connect();
#if CONFIG_FLEET_PROV_AFTER_MIN > 0
    until_invite_ = CONFIG_FLEET_PROV_AFTER_MIN;
    executor_.post_after(minute_ms, [this] { watch_network(); });
#endif
    executor_.post_after(network_wait_ms, [this] { start_unit(); });
}

// watch_network, once a minute: a network that is gone for long may have got another
// password, or another name.
void App::watch_network() {
    executor_.post_after(minute_ms, [this] { watch_network(); });
    if (network_.connected()) {
        until_invite_ = CONFIG_FLEET_PROV_AFTER_MIN;
        return;
    }
    if (--until_invite_ > 0) return;
    if (provisioning_.running()) {
        provisioning_.close();
        until_invite_ = retry_minutes;
    } else {
        // A device in use keeps its code even if only the log shows it: whoever disturbs its
        // Wi-Fi could otherwise submit the page.
        warn(provisioning_.start(CONFIG_FLEET_PROV_NAME, setup_page(true)));
        until_invite_ = invite_minutes;
    }
}

SetupPage App::setup_page(bool asks_code) const {
    return {options().poll_url, asks_code};
}

// Broker and date came from the fleet before.
void App::change_fleet(const std::string &url) {
    Status status = store_.set("boot_url", url);
    if (status.ok()) status = store_.erase("broker");
    if (status.ok()) status = store_.erase(EspClock::key);
    if (status.ok()) status = store_.commit();
    if (!status.ok()) return warn(status);
    ESP_LOGW(TAG, "the fleet is now %s: restarting", url.c_str());
    system_.restart();
}

void App::start_unit() {
    if (unit_started_) return;
    unit_started_ = true;
    kit_.machine = &machine_;
    kit_.unit = unit_.get();
    kit_.with_log = with_log;
    unit_->start();
    const bool safe = unit_->crashes().safe_mode();
    if (safe) ESP_LOGE(TAG, "too many crashes in a row: safe mode, with upgrades and little else");
    warn(add_all_tools(unit_->tools(), kit_, safe));
    if (!safe) warn(add_board_tools(unit_->tools()));
#if CONFIG_FLEET_CAMERA
    static CameraTool camera;
    if (!safe) warn(camera.add(unit_->tools(), kit_));
#endif
    start_status_screen(kit_);
    warn(announce(system_, machine_.board));
}

void App::start_improv() {
#if CONFIG_FLEET_IMPROV_SERIAL
    const AppInfo app = system_.app();
    ImprovHooks hooks;
    hooks.send = [this](std::string_view bytes) { serial_.send(bytes); };
    hooks.join = [this](std::string_view ssid, std::string_view password) { return provisioning_.use(ssid, password); };
    hooks.give_up = [this] {
        if (!provisioning_.running()) warn(network_.restore());
    };
    hooks.scan = scan_networks;
    hooks.product = app.project;
    hooks.version = app.version;
    hooks.chip = system_.chip().model;
    hooks.name = machine_.board.name;
    hooks.next_url = CONFIG_FLEET_CLAIM_URL;
    improv_ = std::make_unique<ImprovService>(executor_, network_, std::move(hooks));
    serial_.on_bytes = [this](Bytes bytes) { improv_->receive(bytes); };
    warn(serial_.start());
#endif
}

// A small screen has the first lines only.
void App::invite(const Invitation &invitation) {
    if (machine_.display == nullptr) return;  // the log has it
    machine_.display->show_text("Wi-Fi setup", invitation.service + "\ncode " + invitation.code + "\nuser " +
                                                   invitation.user + "\nJoin it for its page,\nor Espressif's app");
}

void App::show_claim(const Activation &activation) {
    ESP_LOGW(TAG, "claim this device with code %s %s", activation.code.c_str(), CONFIG_FLEET_CLAIM_URL);
}

void App::start_over() {
    ESP_LOGW(TAG, "the button was held: forgetting Wi-Fi and broker");
    warn(network_.forget());
    warn(store_.erase("broker"));
    warn(store_.erase(EspClock::key));
    warn(store_.commit());
    system_.restart();
}

}  // namespace fleet::esp
