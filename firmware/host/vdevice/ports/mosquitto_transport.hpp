// SPDX-License-Identifier: Apache-2.0
// The Transport by libmosquitto: MQTT 3.1.1, clean session, no SUBSCRIBE (the
// server writes to the client), one attempt per start().
#pragma once

#include "fleet/ports.hpp"

#include <atomic>
#include <memory>
#include <thread>

struct mosquitto;

namespace fleet::host {

struct TlsSettings {
    std::uint16_t port = 8883;  // connections to this port are encrypted
    std::string ca_file;        // PEM; "" takes the system's
};

class MosquittoTransport final : public Transport {
public:
    MosquittoTransport(Executor &executor, TlsSettings tls);
    ~MosquittoTransport() override;

    Status start(const BrokerSettings &settings, std::string_view will_topic, std::string_view will) override;
    void stop(bool say_goodbye) override;
    Status publish(std::string_view topic, Bytes payload, int qos, bool retain) override;

    // connect_to makes every connection go there, whatever start() is given.
    void connect_to(std::string host, std::uint16_t port);
    void unplug();         // there is no network from now on
    void cut();            // the fault "connection dropped": no DISCONNECT, reported as down
    void deliver_twice();  // the fault "duplicate delivery", from now on

private:
    struct Link;
    Status configure(Link &link, const BrokerSettings &settings, std::string_view will_topic, std::string_view will);
    Status encrypt(Link &link);
    void report(std::uint32_t generation, TransportState state, Status why);
    void receive(std::uint32_t generation, std::string payload);

    Executor &executor_;
    TlsSettings tls_;
    std::unique_ptr<Link> link_;
    std::uint32_t generation_ = 0;  // what an older link still reports is dropped
    std::string forced_host_;
    std::uint16_t forced_port_ = 0;
    bool twice_ = false, unplugged_ = false;
    std::shared_ptr<MosquittoTransport *> self_;  // null inside after the end: posted work outlives us
};

}  // namespace fleet::host
