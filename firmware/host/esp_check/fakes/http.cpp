// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include "esp_crt_bundle.h"

#include <algorithm>
#include <utility>

namespace fake::http {

std::deque<Answer> answers;
std::vector<Request> requests;
int open_clients = 0;

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
};

extern "C" {

esp_http_client_handle_t esp_http_client_init(const esp_http_client_config_t *config) {
    auto *client = new esp_http_client{*config, {}, {}, 0};
    client->request.url = config->url;
    client->request.post = config->method == HTTP_METHOD_POST;
    client->request.redirects = !config->disable_auto_redirect;
    client->request.bundle = config->crt_bundle_attach == esp_crt_bundle_attach;
    client->request.ca = config->cert_pem != nullptr ? config->cert_pem : "";
    ++open_clients;
    return client;
}
esp_err_t esp_http_client_set_header(esp_http_client_handle_t client, const char *key, const char *value) {
    client->request.headers[key] = value;
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
    if (client->answer.length < 0 || client->answer.etag.empty()) return client->answer.length;
    esp_http_client_event_t event = {};
    event.event_id = HTTP_EVENT_ON_HEADER;
    event.user_data = client->config.user_data;
    std::string key = "etag", value = client->answer.etag;
    event.header_key = key.data();
    event.header_value = value.data();
    client->config.event_handler(&event);
    return client->answer.length;
}
bool esp_http_client_is_chunked_response(esp_http_client_handle_t client) {
    return client->answer.chunked;
}
int esp_http_client_read(esp_http_client_handle_t client, char *buffer, int len) {
    fake::rtos::now_us += client->answer.read_us;
    const Answer &a = client->answer;
    const std::size_t end = std::min(a.breaks_at, a.body.size());
    if (client->read >= end) return a.breaks_at < a.body.size() ? a.break_result : 0;
    const std::size_t size = std::min({static_cast<std::size_t>(len), end - client->read, std::size_t{1000}});
    a.body.copy(buffer, size, client->read);
    client->read += size;
    return static_cast<int>(size);
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
esp_err_t esp_crt_bundle_attach(void *) {
    return ESP_OK;
}
}
