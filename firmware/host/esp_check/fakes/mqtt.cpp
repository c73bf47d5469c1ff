// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

struct esp_mqtt_client : fake::mqtt::Client {};

namespace fake::mqtt {

std::vector<Client *> clients;
std::vector<std::unique_ptr<esp_mqtt_client>> owned;
int publish_result = 0;
esp_err_t start_result = ESP_OK;

Client &last() {
    return *clients.back();
}

namespace {

void fire(Client &client, esp_mqtt_event_t event) {
    client.handler(client.arg, "MQTT_EVENTS", event.event_id, &event);
}

esp_mqtt_event_t event_of(esp_mqtt_event_id_t id) {
    esp_mqtt_event_t event = {};
    event.event_id = id;
    return event;
}

// begin is the first turn: the task runs, and connects until the test says how it ends.
void begin(Client &client) {
    client.running = true;
    client.link = Link::connecting;
    client.locked_us = rtos::now_us + std::int64_t{client.timeout_ms} * 1000;
    fire(client, event_of(MQTT_EVENT_BEFORE_CONNECT));
}

void abort_connection(Client &client) {
    client.link = Link::down;
    client.queue.clear();
    client.due_us = rtos::now_us + std::int64_t{client.reconnect_ms} * 1000 / 2;
    fire(client, event_of(MQTT_EVENT_DISCONNECTED));
}

// write puts a message on the wire; without room it waits as long as the timeout says,
// and the connection is over.
bool write(Client &client, Sent message) {
    if (client.stalled) {
        client.locked_us = rtos::now_us + std::int64_t{client.timeout_ms} * 1000;
        rtos::pass(client.locked_us - rtos::now_us);
        abort_connection(client);
        return false;
    }
    message.at_us = rtos::now_us;
    client.sent.push_back(std::move(message));
    return true;
}

void turn(Client &client) {
    if (!client.running) return begin(client);
    if (client.link == Link::up && !client.queue.empty()) {
        Sent next = client.queue.front();
        client.queue.pop_front();
        client.due_us = INT64_MAX;  // time passes while it writes
        if (!write(client, std::move(next))) return;
    }
    client.due_us = rtos::now_us + (client.link == Link::up ? poll_us : std::int64_t{client.reconnect_ms} * 1000 / 2);
}

bool has_task(const Client &client) {
    return client.started && !client.stopped && !client.destroyed && client.link != Link::connecting;
}

Sent sent_of(const char *topic, const char *data, int len, int qos, int retain) {
    const std::string payload = data != nullptr ? std::string(data, static_cast<std::size_t>(len)) : "";
    return {topic, payload, data == nullptr, qos, retain != 0, 0};
}

// lock waits for whoever holds the client's lock.
void lock(const Client &client) {
    if (client.locked_us > rtos::now_us) rtos::pass(client.locked_us - rtos::now_us);
}

}  // namespace

bool turn_before(std::int64_t until_us) {
    Client *next = nullptr;
    for (Client *client : clients) {
        if (!has_task(*client) || client->due_us > until_us || client->locked_us > until_us) continue;
        if (next == nullptr || client->due_us < next->due_us) next = client;
    }
    if (next == nullptr) return false;
    rtos::now_us = std::max(rtos::now_us, next->due_us);
    turn(*next);
    return true;
}

void up(Client &client) {
    if (!client.running) begin(client);
    client.locked_us = 0;
    client.link = Link::up;
    client.due_us = rtos::now_us;
    fire(client, event_of(MQTT_EVENT_CONNECTED));
}

void down(Client &client) {
    if (!client.running) begin(client);
    client.locked_us = 0;
    abort_connection(client);
}

void refuse(Client &client, esp_mqtt_connect_return_code_t code) {
    if (!client.running) begin(client);
    esp_mqtt_error_codes_t error = {};
    error.error_type = MQTT_ERROR_TYPE_CONNECTION_REFUSED;
    error.connect_return_code = code;
    esp_mqtt_event_t event = event_of(MQTT_EVENT_ERROR);
    event.error_handle = &error;
    fire(client, event);
    down(client);
}

void message(Client &client, const std::string &text, std::size_t piece) {
    std::string copy = text;
    std::size_t at = 0;
    do {
        esp_mqtt_event_t event = event_of(MQTT_EVENT_DATA);
        event.data = copy.data() + at;
        event.data_len = static_cast<int>(std::min(piece, copy.size() - at));
        event.total_data_len = static_cast<int>(copy.size());
        event.current_data_offset = static_cast<int>(at);
        fire(client, event);
        at += piece;
    } while (at < copy.size());
    turn(client);  // input ends its wait
}

}  // namespace fake::mqtt

using namespace fake::mqtt;

extern "C" {

esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *c) {
    const auto text = [](const char *s) { return s != nullptr ? s : ""; };
    owned.push_back(std::make_unique<esp_mqtt_client>());
    esp_mqtt_client *client = owned.back().get();
    clients.push_back(client);
    client->handle = client;
    client->host = text(c->broker.address.hostname);
    client->port = c->broker.address.port;
    client->tls = c->broker.address.transport == MQTT_TRANSPORT_OVER_SSL;
    client->attach = c->broker.verification.crt_bundle_attach;
    client->client_id = text(c->credentials.client_id);
    client->has_username = c->credentials.username != nullptr;
    client->username = text(c->credentials.username);
    client->password = text(c->credentials.authentication.password);
    client->will_topic = text(c->session.last_will.topic);
    if (!client->will_topic.empty()) {
        client->will.assign(c->session.last_will.msg, static_cast<std::size_t>(c->session.last_will.msg_len));
    }
    client->keepalive = c->session.keepalive;
    client->reconnects = !c->network.disable_auto_reconnect;
    client->timeout_ms = c->network.timeout_ms != 0 ? c->network.timeout_ms : 10000;
    client->reconnect_ms = c->network.reconnect_timeout_ms != 0 ? c->network.reconnect_timeout_ms : 10000;
    return client;
}
esp_err_t esp_mqtt_client_register_event(esp_mqtt_client_handle_t client, esp_mqtt_event_id_t,
                                         esp_event_handler_t handler, void *arg) {
    client->handler = handler;
    client->arg = arg;
    return ESP_OK;
}
esp_err_t esp_mqtt_client_start(esp_mqtt_client_handle_t client) {
    client->started = start_result == ESP_OK;
    client->due_us = fake::rtos::now_us;
    return start_result;
}
// It sends the DISCONNECT itself, and waits until the task has ended: the broker closes,
// which ends a wait for input; a sleep after a lost link lasts its time.
esp_err_t esp_mqtt_client_stop(esp_mqtt_client_handle_t client) {
    if (!client->running || client->stopped) return ESP_FAIL;
    lock(*client);
    if (client->link == Link::up && !client->stalled) {
        client->disconnected = true;
        client->closed_us = fake::rtos::now_us;
        client->due_us = std::min(client->due_us, fake::rtos::now_us + 10'000);
    }
    client->link = Link::idle;
    const std::int64_t ends = client->due_us;
    client->stopped = true;
    if (ends > fake::rtos::now_us && ends != INT64_MAX) fake::rtos::pass(ends - fake::rtos::now_us);
    return ESP_OK;
}
esp_err_t esp_mqtt_client_destroy(esp_mqtt_client_handle_t client) {
    // Its task, just made, would run on freed memory.
    if (client->started && !client->running) std::abort();
    client->destroyed = true;
    return ESP_OK;
}
int esp_mqtt_client_publish(esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos,
                            int retain) {
    if (publish_result < 0) return publish_result;
    lock(*client);
    if (client->link != Link::up) return -1;
    fake::rtos::pass(write_us);
    return write(*client, sent_of(topic, data, len, qos, retain)) ? publish_result : -1;
}
int esp_mqtt_client_enqueue(esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos,
                            int retain, bool) {
    if (publish_result < 0) return publish_result;
    lock(*client);
    client->queue.push_back(sent_of(topic, data, len, qos, retain));
    return 0;
}
}
