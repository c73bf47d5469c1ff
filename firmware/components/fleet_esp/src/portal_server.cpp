// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/portal_server.hpp"

#include "fleet_esp/status_of.hpp"

#include "guard.hpp"

#include "esp_log.h"
#include "esp_timer.h"
#include "lwip/sockets.h"

#include <algorithm>
#include <cerrno>
#include <new>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "portal";
constexpr std::size_t stack_bytes = 5120;
constexpr std::uint16_t max_sockets = 4;    // a phone opens several at once
constexpr std::uint16_t max_handlers = 10;  // two of ours; Espressif's protocol has five
constexpr std::uint16_t read_timeout_s = 5;
// One task serves all: a client that sends byte after byte must not keep it.
constexpr std::int64_t max_wait_us = 10'000'000;
constexpr std::size_t host_size = 64;

const char *status_line(int status) {
    switch (status) {
        case 200: return "200 OK";
        case 302: return "302 Found";
        case 400: return "400 Bad Request";
        case 404: return "404 Not Found";
        case 405: return "405 Method Not Allowed";
        case 413: return "413 Content Too Large";
        default: return "500 Internal Server Error";
    }
}

const char *method_name(int method) {
    switch (method) {
        case HTTP_GET: return "GET";
        case HTTP_POST: return "POST";
        default: return "";
    }
}

void delete_wait(void *wait) {
    delete static_cast<std::int64_t *>(wait);
}

// receive counts how long the connection has kept the server waiting, over all its requests.
int receive(httpd_handle_t server, int socket, char *buffer, std::size_t size, int flags) {
    auto *const waited_us = static_cast<std::int64_t *>(httpd_sess_get_transport_ctx(server, socket));
    if (waited_us == nullptr || *waited_us > max_wait_us) return HTTPD_SOCK_ERR_FAIL;
    const std::int64_t begin = esp_timer_get_time();
    const auto received = static_cast<int>(lwip_recv(socket, buffer, size, flags));
    const bool timed_out = received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    *waited_us += esp_timer_get_time() - begin;
    if (timed_out) return HTTPD_SOCK_ERR_TIMEOUT;
    return received < 0 ? HTTPD_SOCK_ERR_FAIL : received;
}

esp_err_t on_open(httpd_handle_t server, int socket) {
    auto *const waited_us = new (std::nothrow) std::int64_t(0);
    if (waited_us == nullptr) return ESP_ERR_NO_MEM;
    httpd_sess_set_transport_ctx(server, socket, waited_us, delete_wait);
    return httpd_sess_set_recv_override(server, socket, receive);
}

bool read_body(httpd_req_t *request, std::string &body) {
    char buffer[128];
    while (body.size() < request->content_len) {
        const int n = httpd_req_recv(request, buffer, std::min(sizeof buffer, request->content_len - body.size()));
        if (n <= 0) return false;
        body.append(buffer, static_cast<std::size_t>(n));
    }
    return true;
}

std::string host_of(httpd_req_t *request) {
    char host[host_size] = {};
    return httpd_req_get_hdr_value_str(request, "Host", host, sizeof host) == ESP_OK ? host : "";
}

esp_err_t send(httpd_req_t *request, const PortalAnswer &answer) {
    esp_err_t err = httpd_resp_set_status(request, status_line(answer.status));
    if (err == ESP_OK) err = httpd_resp_set_type(request, "text/html; charset=utf-8");
    if (err == ESP_OK) err = httpd_resp_set_hdr(request, "Cache-Control", "no-store");
    if (err == ESP_OK && !answer.location.empty()) {
        err = httpd_resp_set_hdr(request, "Location", answer.location.c_str());
    }
    if (err == ESP_OK) err = httpd_resp_send(request, answer.body.data(), static_cast<ssize_t>(answer.body.size()));
    return err;
}

}  // namespace

Status PortalServer::start(std::string_view address, std::string_view code, std::string_view fleet) {
    if (lock_ == nullptr) lock_ = xSemaphoreCreateMutex();
    if (lock_ == nullptr) return {Code::no_memory, "no memory for the setup page"};
    portal_ = std::make_unique<Portal>(address, code, fleet);
    portal_->use = [this](const PortalInput &input) {
        executor_.post([this, input] {
            if (server_ != nullptr && on_input) on_input(input);
        });
        return Status{};
    };
    httpd_config_t config = HTTPD_DEFAULT_CONFIG();
    config.stack_size = stack_bytes;
    config.max_open_sockets = max_sockets;
    config.max_uri_handlers = max_handlers;
    config.lru_purge_enable = true;
    config.recv_wait_timeout = read_timeout_s;
    config.open_fn = on_open;
    config.global_user_ctx = this;
    config.global_user_ctx_free_fn = [](void *) {};
    const esp_err_t err = httpd_start(&server_, &config);
    if (err != ESP_OK) {
        server_ = nullptr;
        return status_of(err, "the server of the setup page did not start");
    }
    const Status added = add_handlers();
    if (!added.ok()) stop();
    return added;
}

Status PortalServer::add_handlers() {
    httpd_uri_t handler = {};
    handler.uri = "/";
    handler.handler = on_request;
    handler.method = HTTP_GET;
    esp_err_t err = httpd_register_uri_handler(server_, &handler);
    handler.method = HTTP_POST;
    if (err == ESP_OK) err = httpd_register_uri_handler(server_, &handler);
    // A handler for "/*" would hide those that others register afterwards.
    if (err == ESP_OK) err = httpd_register_err_handler(server_, HTTPD_404_NOT_FOUND, on_error);
    if (err == ESP_OK) err = httpd_register_err_handler(server_, HTTPD_405_METHOD_NOT_ALLOWED, on_error);
    return status_of(err, "the setup page was not added to its server");
}

void PortalServer::stop() {
    if (server_ == nullptr) return;
    const esp_err_t err = httpd_stop(server_);
    if (err != ESP_OK) ESP_LOGW(TAG, "the server of the setup page did not stop: %s", esp_err_to_name(err));
    server_ = nullptr;
    portal_.reset();
}

void PortalServer::set_networks(std::vector<std::string> networks) {
    if (server_ == nullptr) return;
    const Guard guard(lock_);
    portal_->networks = std::move(networks);
}

void PortalServer::set_notice(std::string_view notice) {
    if (server_ == nullptr) return;
    const Guard guard(lock_);
    portal_->notice = notice;
}

esp_err_t PortalServer::on_request(httpd_req_t *request) {
    return static_cast<PortalServer *>(httpd_get_global_user_ctx(request->handle))->serve(request);
}

// The server gives no user_ctx to a handler of errors.
esp_err_t PortalServer::on_error(httpd_req_t *request, httpd_err_code_t) {
    return on_request(request);
}

// A failure closes the connection. Otherwise the server would read the rest of a body, however
// long it is.
esp_err_t PortalServer::serve(httpd_req_t *request) {
    const std::string host = host_of(request);
    PortalRequest r = {method_name(request->method), request->uri, host, {}};
    std::string body;
    const bool too_long = request->content_len > Portal::max_body;
    if (too_long) {
        body.assign(Portal::max_body + 1, ' ');  // what refuses it is its size
    } else if (!read_body(request, body)) {
        return ESP_FAIL;
    }
    r.body = body;
    PortalAnswer answer;
    {
        const Guard guard(lock_);
        answer = portal_->handle(r);
    }
    if (request->method == HTTP_HEAD) answer.body.clear();  // a client takes it for the next answer
    const esp_err_t err = send(request, answer);
    return too_long ? ESP_FAIL : err;
}

}  // namespace fleet::esp
