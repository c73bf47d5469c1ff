// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/server_trust.hpp"

#include "mqtt_client.h"

#include <atomic>
#include <memory>
#include <string>

namespace fleet::esp {

struct MqttOptions {
    ServerTrust trust;
    int buffer = 2048;                   // of esp-mqtt; CONNECT has to fit
    std::size_t message_limit = 8192;    // longer messages are dropped
    std::size_t inbox_limit = 16384;     // bytes that came and wait for the executor; what is more is dropped
    std::uint64_t outbox_limit = 16384;  // bytes waiting to be sent
};

// MqttTransport is esp-mqtt without its own reconnecting: the core decides when
// to try again.
class MqttTransport final : public Transport {
public:
    MqttTransport(Executor &executor, const MqttOptions &options) : executor_(executor), options_(options) {}
    ~MqttTransport() override { stop(false); }

    Status start(const BrokerSettings &settings, std::string_view will_topic, std::string_view will) override;
    void stop(bool say_goodbye) override;
    Status publish(std::string_view topic, Bytes payload, int qos, bool retain) override;

private:
    // A Connection lives from start to stop. Events of esp-mqtt's task reach the
    // transport only while it is the current one.
    struct Connection {
        MqttTransport *owner = nullptr;
        unsigned number = 0;
        std::string incoming;  // a message that came in pieces; esp-mqtt's task only
        bool skipping = false;
        bool refused = false;
        const char *why = "the connection to the broker was lost";
    };

    static void on_event(void *arg, esp_event_base_t base, std::int32_t id, void *data);
    void handle(Connection &connection, const esp_mqtt_event_t &event);
    void gather(Connection &connection, const esp_mqtt_event_t &event);
    void tell(const Connection &connection, TransportState state, Status status);
    void refuse(const Connection &connection, int size);
    void deliver(const Connection &connection, std::string message);

    Executor &executor_;
    MqttOptions options_;
    esp_mqtt_client_handle_t client_ = nullptr;
    std::unique_ptr<Connection> connection_;
    unsigned number_ = 0;
    bool up_ = false;
    std::atomic<std::size_t> waiting_{0};  // bytes of messages that were posted and have not run
};

}  // namespace fleet::esp
