// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include <algorithm>
#include <utility>

namespace fake::http {

std::deque<Answer> answers;
std::vector<Request> requests;
int open_clients = 0;
int reads = 0;

Answer answer(std::string body, int status) {
    Answer a;
    a.status = status;
    a.length = static_cast<std::int64_t>(body.size());
    a.body = std::move(body);
    return a;
}

}  // namespace fake::http

using namespace fake::http;

struct esp_http_client {
    esp_http_client_config_t config;
    Request request;
    Answer answer;
    std::size_t read = 0;
    std::size_t framing = 0;
    std::int64_t wait_us = 0;  // for what the socket gives next
    int timeout_ms = 0;
};

namespace {

// wait_for_bytes is one read of the socket: false after the timeout.
bool wait_for_bytes(esp_http_client &client) {
    const std::int64_t limit = std::int64_t{client.timeout_ms} * 1000;
    if (client.wait_us == 0) client.wait_us = client.answer.read_us;
    if (client.wait_us > limit) {
        fake::rtos::pass(limit);
        client.wait_us -= limit;
        return false;
    }
    fake::rtos::pass(client.wait_us);
    client.wait_us = 0;
    return true;
}

// skip_framing reads the bytes that are neither a whole header nor body.
bool skip_framing(esp_http_client &client) {
    for (; client.framing < client.answer.framing; ++client.framing) {
        if (!wait_for_bytes(client)) return false;
    }
    return true;
}

void fire(esp_http_client &client, esp_http_client_event_id_t id, char *key = nullptr, char *value = nullptr) {
    esp_http_client_event_t event = {};
    event.event_id = id;
    event.client = &client;
    event.user_data = client.config.user_data;
    event.header_key = key;
    event.header_value = value;
    client.config.event_handler(&event);
}

}  // namespace

extern "C" {

esp_http_client_handle_t esp_http_client_init(const esp_http_client_config_t *config) {
    auto *client = new esp_http_client{*config, {}, {}, 0, 0, 0, config->timeout_ms};
    client->request.url = config->url;
    client->request.post = config->method == HTTP_METHOD_POST;
    client->request.redirects = !config->disable_auto_redirect;
    client->request.attach = config->crt_bundle_attach;
    ++open_clients;
    return client;
}
esp_err_t esp_http_client_set_header(esp_http_client_handle_t client, const char *key, const char *value) {
    client->request.headers[key] = value;
    return ESP_OK;
}
esp_err_t esp_http_client_set_timeout_ms(esp_http_client_handle_t client, int timeout_ms) {
    client->timeout_ms = timeout_ms;
    return ESP_OK;
}
esp_err_t esp_http_client_open(esp_http_client_handle_t client, int length) {
    client->request.length = length;
    if (answers.empty()) return ESP_ERR_HTTP_CONNECT;
    client->answer = answers.front();
    answers.pop_front();
    return client->answer.open_result;
}
int esp_http_client_write(esp_http_client_handle_t client, const char *buffer, int len) {
    const int taken = len > 100 ? 100 : len;  // a socket takes what it can
    client->request.body.append(buffer, static_cast<std::size_t>(taken));
    return taken;
}
int64_t esp_http_client_fetch_headers(esp_http_client_handle_t client) {
    if (!client->answer.chunked && !skip_framing(*client)) return -ESP_ERR_HTTP_EAGAIN;
    if (client->answer.length == -ESP_ERR_HTTP_EAGAIN) fake::rtos::pass(std::int64_t{client->timeout_ms} * 1000);
    if (client->answer.length < 0 || client->answer.etag.empty()) return client->answer.length;
    std::string key = "etag", value = client->answer.etag;
    fire(*client, HTTP_EVENT_ON_HEADER, key.data(), value.data());
    return client->answer.length;
}
bool esp_http_client_is_chunked_response(esp_http_client_handle_t client) {
    return client->answer.chunked;
}
// As in ESP-IDF 5.x: it returns when the buffer is full, the body over, or one read of the
// socket gave nothing within the timeout.
int esp_http_client_read(esp_http_client_handle_t client, char *buffer, int len) {
    ++reads;
    const Answer &a = client->answer;
    const std::size_t end = std::min(a.breaks_at, a.body.size());
    std::size_t filled = 0;
    while (filled < static_cast<std::size_t>(len)) {
        if (client->read >= end) {
            if (a.breaks_at >= a.body.size() || filled > 0) break;
            if (a.break_result == -ESP_ERR_HTTP_EAGAIN) fake::rtos::pass(std::int64_t{client->timeout_ms} * 1000);
            return a.break_result;
        }
        if (!skip_framing(*client) || !wait_for_bytes(*client)) {
            if (filled > 0) break;
            return -ESP_ERR_HTTP_EAGAIN;
        }
        const std::size_t size = std::min({static_cast<std::size_t>(len) - filled, end - client->read, a.read_size});
        a.body.copy(buffer + filled, size, client->read);
        client->read += size;
        filled += size;
        fire(*client, HTTP_EVENT_ON_DATA);
    }
    return static_cast<int>(filled);
}
int esp_http_client_get_status_code(esp_http_client_handle_t client) {
    return client->answer.status;
}
bool esp_http_client_is_complete_data_received(esp_http_client_handle_t client) {
    return client->answer.chunked && client->read == client->answer.body.size();
}
esp_err_t esp_http_client_close(esp_http_client_handle_t client) {
    requests.push_back(client->request);
    return ESP_OK;
}
esp_err_t esp_http_client_cleanup(esp_http_client_handle_t client) {
    delete client;
    --open_clients;
    return ESP_OK;
}
}
