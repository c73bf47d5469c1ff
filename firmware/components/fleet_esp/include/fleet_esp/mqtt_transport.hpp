// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/server_trust.hpp"
#include "fleet_esp/task_executor.hpp"

#include "mqtt_client.h"

#include <atomic>
#include <memory>
#include <string>

namespace fleet::esp {

struct MqttOptions {
    ServerTrust trust;
    int buffer = 2048;                 // of esp-mqtt; CONNECT has to fit
    std::size_t message_limit = 8192;  // longer messages are dropped
    std::size_t inbox_limit = 16384;   // bytes that came and wait for the executor; what is more is dropped
    std::size_t outbox_limit = 16384;  // bytes waiting to be sent
};

// MqttTransport is esp-mqtt without its own reconnecting: the core decides when
// to try again.
//
// esp-mqtt's calls run on the executor's link task, one after the other. Messages
// are published, not queued in esp-mqtt: its loop sends one queued message and
// then waits up to a second for input.
class MqttTransport final : public Transport {
public:
    // The executor's tasks must not outlive the transport.
    MqttTransport(TaskExecutor &executor, const MqttOptions &options) : executor_(executor), options_(options) {}
    ~MqttTransport() override { close(); }

    // start fails by on_state alone: the client is made on the link task.
    Status start(const BrokerSettings &settings, std::string_view will_topic, std::string_view will) override;
    void stop(bool say_goodbye) override;
    Status publish(std::string_view topic, Bytes payload, int qos, bool retain) override;

private:
    // A Connection lives from open to close. Events of esp-mqtt's task reach the
    // transport only while it is the current one.
    struct Connection {
        MqttTransport *owner = nullptr;
        unsigned number = 0;
        std::string incoming;  // a message that came in pieces; esp-mqtt's task only
        bool tls = false;
        bool skipping = false;
        bool refused = false;
        std::atomic<bool> begun{false};  // esp-mqtt's task runs
        const char *why = "the connection to the broker was lost";
    };
    struct Message {
        std::string topic, payload;
        int qos = 0;
        bool retain = false;
    };

    // On the link task.
    void open(unsigned number, const BrokerSettings &settings, const std::string &will_topic, const std::string &will);
    void send(unsigned number, const Message &message);
    void close();

    // On esp-mqtt's task.
    static void on_event(void *arg, esp_event_base_t base, std::int32_t id, void *data);
    void handle(Connection &connection, const esp_mqtt_event_t &event);
    void gather(Connection &connection, const esp_mqtt_event_t &event);
    void end(const Connection &connection);
    void refuse(const Connection &connection, int size);
    void deliver(const Connection &connection, std::string message);

    void report(unsigned number, TransportState state, Status status);

    TaskExecutor &executor_;
    MqttOptions options_;
    esp_mqtt_client_handle_t client_ = nullptr;  // the link task's, like the next
    std::unique_ptr<Connection> connection_;
    unsigned number_ = 0;  // of the current connection; the executor's, like the next
    bool up_ = false;
    std::atomic<std::size_t> waiting_{0};   // bytes of messages that were posted and have not run
    std::atomic<std::size_t> outgoing_{0};  // bytes that were published and have not left
};

}  // namespace fleet::esp
