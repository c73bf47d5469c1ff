// SPDX-License-Identifier: Apache-2.0
// A whole device: the parts of the core on one machine. The board adds its
// tools and calls start; everything after that happens on the executor.
#pragma once

#include "fleet/backoff.hpp"
#include "fleet/boot.hpp"
#include "fleet/config_store.hpp"
#include "fleet/crash_loop.hpp"
#include "fleet/mcp_server.hpp"
#include "fleet/ota_flow.hpp"
#include "fleet/outbox.hpp"
#include "fleet/session.hpp"
#include "fleet/telemetry.hpp"
#include "fleet/url.hpp"

#include <cstdint>
#include <string>

namespace fleet {

struct UnitOptions {
    std::string poll_url;
    OtaPolicy ota;
    std::uint32_t config_trial_ms = 120'000;  // a new configuration has the broker at its end, or is taken back
    // The core's memory at rest is these two, 512 bytes and some 5 KB.
    std::size_t page_bytes = 3072;
    std::size_t outbox_bytes = 2048;
    CallRates rates;
    // The first poll comes at a random time within this: a building whose power
    // comes back does not poll at once.
    std::uint32_t first_poll_jitter_ms = 0;
    // Say hello with features.mcp at each connection: other servers than fleetd begin
    // MCP with it, as with a stock device that opens its audio channel.
    bool hello = false;
    // The url_hosts setting adds to these; the host of poll_url is always allowed.
    std::string url_hosts;
};

class Unit {
public:
    static constexpr std::int64_t offline_restart_us = 6LL * 3600 * 1'000'000;  // without a broker: restart
    static constexpr std::uint32_t flush_ms = 50;                               // between two messages of the outbox
    static constexpr std::uint32_t network_up_wait_ms = 5'000;                  // at most, once the network is back
    static constexpr std::uint32_t connect_ms = 60'000;                 // for name, TCP, TLS and CONNECT together
    static constexpr std::uint32_t goodbye_ms = 500;                    // for what is sent after the order to restart
    static constexpr std::uint32_t restart_ms = 2500;                   // from the order, whatever the broker does
    static constexpr std::int64_t offline_beat_us = 300LL * 1'000'000;  // between two heartbeats kept for later

    // machine has to outlive the unit; board and version are read from it.
    Unit(const Machine &machine, UnitOptions options);

    // start begins with the boot poll. Add tools before.
    void start();

    ToolRegistry &tools() { return tools_; }
    McpServer &server() { return server_; }
    ConfigStore &config() { return config_; }
    OtaFlow &ota() { return ota_; }
    const CrashLoop &crashes() const { return crashes_; }
    bool online() const { return link_ == Link::up; }

    // notify sends a notification, or keeps it until the broker is there.
    void notify(std::string_view method, Keep keep, FunctionRef<void(JsonWriter &)> write);
    void report(const JobReport &job);
    // upgrade starts an upgrade within the URL policy.
    Status upgrade(const FirmwareOrder &order, std::string_view job);
    // configure proposes a configuration and sees its trial through.
    Refusal configure(JsonView document);
    // restart lets the answers leave and says goodbye to the broker, then restarts
    // the machine: after restart_ms at the latest.
    void restart();
    Status check_url(std::string_view url) const;
    // network_up shortens the waits for poll and broker to network_up_wait_ms at most. Not
    // after a refusal: other credentials do not come with an address.
    void network_up();

    // The claim code is there to be read; boards without a screen print it.
    Hook<void(const Activation &)> on_claim;

private:
    enum class Link : std::uint8_t { off, connecting, up, waiting };

    void wire();
    void wire_boot();
    void answered(const PollAnswer &answer);
    void offered(const FirmwareOrder &order);
    void use_saved_broker();
    void connect();
    void plan_reconnect(std::uint32_t ms);
    void reconnect();
    std::uint32_t random_below(std::uint32_t most) const;
    void first_poll();
    void judge_connect();
    void connect_overdue();
    void on_state(TransportState state);
    void received(Bytes message);
    void lost(bool refused);
    void refused();
    void leave();
    void goodbye();
    void restart_now();
    bool send(std::string_view message);
    void send_notice(std::string_view message, Keep keep);
    void flush();
    void flush_next();
    void judge_config();
    void report_config();
    void plan_heartbeat();
    void heartbeat();
    Vitals vitals() const;
    void send_telemetry();
    void keep_heartbeat();
    std::uint32_t heartbeat_ms() const;

    const Machine &machine_;
    UnitOptions options_;
    ToolRegistry tools_;
    McpServer server_;
    Session session_;
    Outbox outbox_;
    ConfigStore config_;
    CrashLoop crashes_;
    OtaFlow ota_;
    Boot boot_;
    Backoff backoff_;
    BrokerSettings broker_;
    std::int64_t last_message_us_ = 0;
    std::int64_t reconnect_us_ = 0;  // when the next attempt is due
    std::int64_t connect_us_ = 0;    // when the last attempt began
    std::int64_t last_kept_us_ = -offline_beat_us;
    std::uint32_t reconnects_ = 0;
    std::uint32_t refusals_ = 0;  // in a row
    Link link_ = Link::off;
    bool have_broker_ = false;
    bool leaving_ = false;     // about to restart
    bool restarting_ = false;  // by restart, not by an upgrade
    bool flushing_ = false;
    bool judging_connect_ = false;
    bool published_ = false;  // on this connection
    bool birth_due_ = false;  // is to be sent
};

}  // namespace fleet
