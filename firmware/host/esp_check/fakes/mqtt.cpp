// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include <algorithm>
#include <memory>

struct esp_mqtt_client : fake::mqtt::Client {};

namespace fake::mqtt {

std::vector<Client *> clients;
std::vector<std::unique_ptr<esp_mqtt_client>> owned;
int enqueue_result = 1;
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

}  // namespace

void up(Client &client) {
    fire(client, event_of(MQTT_EVENT_BEFORE_CONNECT));
    fire(client, event_of(MQTT_EVENT_CONNECTED));
}

void down(Client &client) {
    fire(client, event_of(MQTT_EVENT_DISCONNECTED));
}

void refuse(Client &client, esp_mqtt_connect_return_code_t code) {
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
}

}  // namespace fake::mqtt

using namespace fake::mqtt;

extern "C" {

esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *c) {
    const auto text = [](const char *s) { return s != nullptr ? s : ""; };
    owned.push_back(std::make_unique<esp_mqtt_client>());
    esp_mqtt_client *client = owned.back().get();
    clients.push_back(client);
    client->host = text(c->broker.address.hostname);
    client->port = c->broker.address.port;
    client->tls = c->broker.address.transport == MQTT_TRANSPORT_OVER_SSL;
    client->bundle = c->broker.verification.crt_bundle_attach != nullptr;
    client->ca = text(c->broker.verification.certificate);
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
    return start_result;
}
esp_err_t esp_mqtt_client_disconnect(esp_mqtt_client_handle_t client) {
    client->disconnected = true;
    return ESP_OK;
}
esp_err_t esp_mqtt_client_stop(esp_mqtt_client_handle_t client) {
    client->stopped = true;
    return ESP_OK;
}
esp_err_t esp_mqtt_client_destroy(esp_mqtt_client_handle_t client) {
    client->destroyed = true;
    return ESP_OK;
}
int esp_mqtt_client_enqueue(esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos,
                            int retain, bool) {
    if (enqueue_result < 0) return enqueue_result;
    const std::string payload = data != nullptr ? std::string(data, static_cast<std::size_t>(len)) : "";
    client->sent.push_back({topic, payload, data == nullptr, qos, retain != 0});
    return enqueue_result;
}
}
