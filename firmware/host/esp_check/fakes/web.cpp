// SPDX-License-Identifier: Apache-2.0
// esp_http_server and UDP, without sockets: tests hand in what a client sends.
#include "fakes.hpp"

#include "esp_http_server.h"
#include "lwip/sockets.h"

#include <cerrno>
#include <cstring>

namespace fake::web {

bool running = false;
httpd_config_t config = {};
esp_err_t start_result = ESP_OK;
std::vector<Handler> handlers;
std::map<int, httpd_err_handler_func_t> errors;

namespace {

// One connection at a time is enough.
struct Connection {
    const Client *client = nullptr;
    std::size_t sent = 0;
    void *ctx = nullptr;
    httpd_free_ctx_fn_t free_ctx = nullptr;
    httpd_recv_func_t receive = nullptr;
    std::size_t unread = 0;  // of the body
    Reply reply;
};
Connection connection;

void close() {
    if (connection.ctx != nullptr) connection.free_ctx(connection.ctx);
    connection.ctx = nullptr;
    connection.reply.closed = true;
}

esp_err_t dispatch(httpd_req_t &request) {
    const std::string path = std::string(request.uri).substr(0, std::string(request.uri).find('?'));
    int error = HTTPD_404_NOT_FOUND;
    for (const Handler &h : handlers) {
        if (h.uri != path) continue;
        if (h.method == request.method) return h.handler(&request);
        error = HTTPD_405_METHOD_NOT_ALLOWED;
    }
    if (errors.count(error) == 0) return ESP_FAIL;
    return errors[error](&request, static_cast<httpd_err_code_t>(error));
}

}  // namespace

Reply send(const Client &client) {
    connection = {};
    connection.client = &client;
    if (!running || config.open_fn(&running, 7) != ESP_OK) return {};
    httpd_req_t request = {};
    request.handle = &running;
    request.method = client.method;
    std::strncpy(const_cast<char *>(request.uri), client.uri.c_str(), CONFIG_HTTPD_MAX_URI_LEN);
    request.content_len = client.announced != 0 ? client.announced : client.body.size();
    connection.unread = request.content_len;
    esp_err_t err = dispatch(request);
    // As the real one: after an answer, the rest of the body is read and forgotten.
    char rest[32];
    while (err == ESP_OK && connection.unread > 0) {
        if (httpd_req_recv(&request, rest, sizeof rest) <= 0) err = ESP_FAIL;
    }
    const bool failed = err != ESP_OK;
    connection.reply.kept = !failed;
    close();
    return connection.reply;
}

}  // namespace fake::web

namespace fake::udp {

int opened = 0, closed = 0, port = 0;
std::uint32_t address = 0;
esp_err_t bind_result = ESP_OK;
std::deque<std::string> incoming;
std::vector<std::string> sent;

}  // namespace fake::udp

using namespace fake;
using web::connection;

extern "C" {

esp_err_t httpd_start(httpd_handle_t *server, const httpd_config_t *config) {
    if (web::start_result != ESP_OK) return web::start_result;
    web::config = *config;
    web::running = true;
    *server = &web::running;
    return ESP_OK;
}
esp_err_t httpd_stop(httpd_handle_t) {
    web::running = false;
    web::handlers.clear();
    web::errors.clear();
    web::config.global_user_ctx_free_fn(web::config.global_user_ctx);
    return ESP_OK;
}
esp_err_t httpd_register_uri_handler(httpd_handle_t, const httpd_uri_t *handler) {
    if (web::handlers.size() == web::config.max_uri_handlers) return ESP_FAIL;
    web::handlers.push_back({handler->uri, handler->method, handler->handler});
    return ESP_OK;
}
esp_err_t httpd_register_err_handler(httpd_handle_t, httpd_err_code_t error, httpd_err_handler_func_t handler) {
    web::errors[error] = handler;
    return ESP_OK;
}
void *httpd_get_global_user_ctx(httpd_handle_t) {
    return web::config.global_user_ctx;
}
void *httpd_sess_get_transport_ctx(httpd_handle_t, int) {
    return connection.ctx;
}
void httpd_sess_set_transport_ctx(httpd_handle_t, int, void *ctx, httpd_free_ctx_fn_t free_fn) {
    connection.ctx = ctx;
    connection.free_ctx = free_fn;
}
esp_err_t httpd_sess_set_recv_override(httpd_handle_t, int, httpd_recv_func_t receive) {
    connection.receive = receive;
    return ESP_OK;
}
int httpd_req_recv(httpd_req_t *request, char *buffer, size_t size) {
    if (size > connection.unread) size = connection.unread;
    if (size == 0) return 0;
    const int n = connection.receive(request->handle, 7, buffer, size, 0);
    if (n > 0) connection.unread -= static_cast<std::size_t>(n);
    return n;
}
esp_err_t httpd_req_get_hdr_value_str(httpd_req_t *, const char *field, char *value, size_t size) {
    if (std::strcmp(field, "Host") != 0 || connection.client->host.empty()) return ESP_ERR_NOT_FOUND;
    const std::string &host = connection.client->host;
    const std::size_t n = host.copy(value, size - 1);
    value[n] = 0;
    return n < host.size() ? ESP_ERR_INVALID_SIZE : ESP_OK;
}
esp_err_t httpd_resp_set_status(httpd_req_t *, const char *status) {
    connection.reply.status = std::atoi(status);
    return ESP_OK;
}
esp_err_t httpd_resp_set_type(httpd_req_t *, const char *type) {
    connection.reply.headers["Content-Type"] = type;
    return ESP_OK;
}
esp_err_t httpd_resp_set_hdr(httpd_req_t *, const char *field, const char *value) {
    connection.reply.headers[field] = value;
    return ESP_OK;
}
esp_err_t httpd_resp_send(httpd_req_t *, const char *body, ssize_t size) {
    connection.reply.body.assign(body, static_cast<std::size_t>(size));
    return ESP_OK;
}

ssize_t lwip_recv(int, void *buffer, size_t size, int) {
    const web::Client &client = *connection.client;
    const std::int64_t timeout_us = std::int64_t{web::config.recv_wait_timeout} * 1'000'000;
    if (client.pause_us > timeout_us || connection.sent == client.body.size()) {
        rtos::pass(timeout_us);
        errno = EAGAIN;
        return -1;
    }
    rtos::pass(client.pause_us);
    if (client.resets) {
        errno = ECONNRESET;
        return -1;
    }
    const std::string piece = client.body.substr(connection.sent, std::min(size, client.piece));
    connection.sent += piece.size();
    std::memcpy(buffer, piece.data(), piece.size());
    return static_cast<ssize_t>(piece.size());
}

int lwip_socket(int, int, int) {
    ++udp::opened;
    return 9;
}
int lwip_bind(int, const sockaddr *address, socklen_t) {
    const auto *in = reinterpret_cast<const sockaddr_in *>(address);
    udp::port = ntohs(in->sin_port);
    udp::address = in->sin_addr.s_addr;
    return udp::bind_result == ESP_OK ? 0 : -1;
}
int lwip_close(int) {
    ++udp::closed;
    return 0;
}
ssize_t lwip_recvfrom(int, void *buffer, size_t size, int, sockaddr *, socklen_t *) {
    if (udp::incoming.empty()) {
        errno = EAGAIN;
        return -1;
    }
    const std::string query = udp::incoming.front().substr(0, size);
    udp::incoming.pop_front();
    std::memcpy(buffer, query.data(), query.size());
    return static_cast<ssize_t>(query.size());
}
ssize_t lwip_sendto(int, const void *bytes, size_t size, int, const sockaddr *, socklen_t) {
    udp::sent.emplace_back(static_cast<const char *>(bytes), size);
    return static_cast<ssize_t>(size);
}
}
