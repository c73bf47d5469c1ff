// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/mqtt_transport.hpp"

#include "fleet_esp/esp_clock.hpp"
#include "fleet_esp/status_of.hpp"

#include "esp_log.h"

#include <utility>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "mqtt";
constexpr std::uint16_t tls_port = 8883;
constexpr int connect_timeout_ms = 10000;
// After a lost link esp-mqtt's task sleeps for half of this before it sees that it
// is to end; 5 s by default.
constexpr int reconnect_timeout_ms = 100;
constexpr int task_stack = 6144;
constexpr std::size_t message_cost = 64;  // of heap, besides its bytes

void set_address(esp_mqtt_client_config_t &config, const BrokerSettings &settings, const ServerTrust &trust) {
    config.broker.address.hostname = settings.host.c_str();
    config.broker.address.port = settings.port;
    config.broker.address.transport = MQTT_TRANSPORT_OVER_TCP;
    if (settings.port != tls_port) return;
    config.broker.address.transport = MQTT_TRANSPORT_OVER_SSL;
    config.broker.verification.crt_bundle_attach = trust.attach();
}

const char *or_null(const std::string &text) {
    return text.empty() ? nullptr : text.c_str();
}

// What esp-mqtt says of an error, as a sentence that an operator can act on.
const char *sentence_of(const esp_mqtt_error_codes_t &error) {
    if (error.error_type != MQTT_ERROR_TYPE_CONNECTION_REFUSED) {
        if (error.esp_tls_cert_verify_flags != 0) return "the broker's certificate was not accepted";
        return "the broker was not reached";
    }
    switch (error.connect_return_code) {
        case MQTT_CONNECTION_REFUSE_BAD_USERNAME:
        case MQTT_CONNECTION_REFUSE_NOT_AUTHORIZED: return "the broker refused the credentials";
        case MQTT_CONNECTION_REFUSE_ID_REJECTED: return "the broker refused the client id";
        case MQTT_CONNECTION_REFUSE_SERVER_UNAVAILABLE: return "the broker takes no connections now";
        default: return "the broker refused the connection";
    }
}

// A broker that is only busy is tried again like one that is not there.
bool is_refusal(const esp_mqtt_error_codes_t &error) {
    return error.error_type == MQTT_ERROR_TYPE_CONNECTION_REFUSED &&
           error.connect_return_code != MQTT_CONNECTION_REFUSE_SERVER_UNAVAILABLE;
}

}  // namespace

Status MqttTransport::start(const BrokerSettings &settings, std::string_view will_topic, std::string_view will) {
    up_ = false;
    const unsigned number = ++number_;
    executor_.link([this, number, settings, topic = std::string(will_topic), text = std::string(will)] {
        open(number, settings, topic, text);
    });
    return {};
}

void MqttTransport::open(unsigned number, const BrokerSettings &settings, const std::string &will_topic,
                         const std::string &will) {
    close();
    esp_mqtt_client_config_t config = {};
    set_address(config, settings, options_.trust);
    config.credentials.client_id = settings.client_id.c_str();
    config.credentials.username = or_null(settings.username);
    config.credentials.authentication.password = or_null(settings.password);
    config.session.keepalive = settings.keepalive_s;
    config.session.protocol_ver = MQTT_PROTOCOL_V_3_1_1;
    if (!will_topic.empty()) {
        config.session.last_will.topic = will_topic.c_str();
        config.session.last_will.msg = will.c_str();
        config.session.last_will.msg_len = static_cast<int>(will.size());
    }
    config.network.disable_auto_reconnect = true;
    config.network.reconnect_timeout_ms = reconnect_timeout_ms;
    config.network.timeout_ms = connect_timeout_ms;
    config.task.stack_size = task_stack;
    config.buffer.size = options_.buffer;
    config.buffer.out_size = options_.buffer;
    config.outbox.limit = options_.outbox_limit;

    client_ = esp_mqtt_client_init(&config);
    if (client_ == nullptr) {
        return report(number, TransportState::down, {Code::no_memory, "the MQTT client was not made"});
    }
    connection_ = std::make_unique<Connection>();
    connection_->owner = this;
    connection_->number = number;
    connection_->tls = settings.port == tls_port;
    esp_err_t err = esp_mqtt_client_register_event(client_, MQTT_EVENT_ANY, on_event, connection_.get());
    if (err == ESP_OK) err = esp_mqtt_client_start(client_);
    if (err == ESP_OK) return;
    connection_->begun = true;  // there is no task to wait for
    close();
    report(number, TransportState::down, status_of(err, "the MQTT client did not start"));
}

// close sends a DISCONNECT if the connection is up: esp_mqtt_client_stop does.
void MqttTransport::close() {
    if (client_ == nullptr) return;
    // Before its task has begun, a client cannot be stopped, and must not be freed.
    while (!connection_->begun)
        vTaskDelay(pdMS_TO_TICKS(10));
    esp_mqtt_client_stop(client_);  // fails if its task has ended already, which is as good
    esp_mqtt_client_destroy(client_);
    client_ = nullptr;
    connection_.reset();
}

void MqttTransport::stop(bool) {
    up_ = false;
    ++number_;  // what was posted and has not run yet is of the past
    executor_.link([this] {
        close();
        executor_.post([this] {
            if (on_stopped) on_stopped();
        });
    });
}

Status MqttTransport::publish(std::string_view topic, Bytes payload, int qos, bool retain) {
    if (!up_) return {Code::unavailable, "no connection to the broker"};
    const std::size_t cost = topic.size() + payload.size + message_cost;
    if (outgoing_ + cost > options_.outbox_limit) return {Code::no_space, "the MQTT outbox is full"};
    outgoing_ += cost;
    Message message{std::string(topic), std::string(payload.text()), qos, retain};
    executor_.link([this, number = number_, cost, message = std::move(message)] {
        send(number, message);
        outgoing_ -= cost;
    });
    return {};
}

// send waits while TCP takes no bytes; esp-mqtt then gives the connection up.
void MqttTransport::send(unsigned number, const Message &message) {
    if (connection_ == nullptr || connection_->number != number) return;
    // A length of 0 would make esp-mqtt measure the text itself.
    const char *data = message.payload.empty() ? nullptr : message.payload.data();
    const int size = static_cast<int>(message.payload.size());
    const int id = esp_mqtt_client_publish(client_, message.topic.c_str(), data, size, message.qos, message.retain);
    if (id < 0) ESP_LOGW(TAG, "a message of %d bytes was not sent", size);
}

void MqttTransport::on_event(void *arg, esp_event_base_t, std::int32_t, void *data) {
    Connection &connection = *static_cast<Connection *>(arg);
    connection.owner->handle(connection, *static_cast<const esp_mqtt_event_t *>(data));
}

// handle may read options_ and the connection, and post.
void MqttTransport::handle(Connection &connection, const esp_mqtt_event_t &event) {
    switch (event.event_id) {
        case MQTT_EVENT_BEFORE_CONNECT:
            connection.begun = true;
            return report(connection.number, TransportState::connecting, {});
        case MQTT_EVENT_CONNECTED:
            if (connection.tls) confirm_date();
            return report(connection.number, TransportState::up, {});
        case MQTT_EVENT_DATA: return gather(connection, event);
        case MQTT_EVENT_ERROR:
            if (event.error_handle == nullptr) return;
            connection.why = sentence_of(*event.error_handle);
            connection.refused = is_refusal(*event.error_handle);
            return;
        case MQTT_EVENT_DISCONNECTED: return end(connection);
        default: return;
    }
}

// gather joins the pieces of a message that is longer than esp-mqtt's buffer.
void MqttTransport::gather(Connection &connection, const esp_mqtt_event_t &event) {
    if (event.current_data_offset == 0) {
        connection.incoming.clear();
        connection.skipping =
            event.total_data_len < 0 || static_cast<std::size_t>(event.total_data_len) > options_.message_limit;
        if (connection.skipping) refuse(connection, event.total_data_len);
    }
    if (connection.skipping || event.data_len < 0) return;
    connection.incoming.append(event.data, static_cast<std::size_t>(event.data_len));
    if (connection.incoming.size() < static_cast<std::size_t>(event.total_data_len)) return;
    deliver(connection, std::move(connection.incoming));
    connection.incoming = {};
}

// end frees the client soon, not when the core tries again.
void MqttTransport::end(const Connection &connection) {
    const unsigned number = connection.number;
    if (connection.refused) {
        report(number, TransportState::refused, {Code::refused, connection.why});
    } else {
        report(number, TransportState::down, {Code::unavailable, connection.why});
    }
    executor_.link([this, number] {
        if (connection_ != nullptr && connection_->number == number) close();
    });
}

void MqttTransport::report(unsigned number, TransportState state, Status status) {
    executor_.post([this, number, state, status] {
        if (number != number_) return;
        up_ = state == TransportState::up;
        if (on_state) on_state(state, status);
    });
}

void MqttTransport::refuse(const Connection &connection, int size) {
    ESP_LOGW(TAG, "dropped a message of %d bytes", size);
    if (waiting_ > options_.inbox_limit / 2) return;  // a flood gets no answers
    const unsigned number = connection.number;
    waiting_ += message_cost;
    executor_.post([this, number] {
        waiting_ -= message_cost;
        if (number == number_ && on_too_long) on_too_long();
    });
}

// deliver bounds what waits: a flood would otherwise use up the heap faster than
// the executor answers.
void MqttTransport::deliver(const Connection &connection, std::string message) {
    const std::size_t cost = message.size() + message_cost;
    if (waiting_ > 0 && waiting_ + cost > options_.inbox_limit) {
        ESP_LOGW(TAG, "dropped a message: %u bytes wait already", static_cast<unsigned>(waiting_));
        return;
    }
    waiting_ += cost;
    const unsigned number = connection.number;
    executor_.post([this, number, cost, text = std::move(message)] {
        waiting_ -= cost;
        if (number == number_ && on_message) on_message(Bytes(text));
    });
}

}  // namespace fleet::esp
