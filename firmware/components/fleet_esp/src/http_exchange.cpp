// SPDX-License-Identifier: Apache-2.0
#include "http_exchange.hpp"

#include "fleet_esp/status_of.hpp"

#include "esp_log.h"
#include "esp_task_wdt.h"
#include "esp_timer.h"

#include <strings.h>

#include <algorithm>
#include <memory>
#include <new>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "http";
constexpr int head_buffer = 2048;  // a line of the request or of the answer has to fit
constexpr std::size_t piece = 4096;
// Longest wait for input in one call. esp_http_client goes on reading as long as bytes
// come, until a header is whole or a buffer full: a server that sends one now and then
// would hold it as long as it likes.
constexpr std::int64_t slice_ms = 100;

bool is_web_url(std::string_view url) {
    return url.rfind("http://", 0) == 0 || url.rfind("https://", 0) == 0;
}

}  // namespace

HttpExchange::HttpExchange(const HttpOptions &options, std::int64_t limit_ms)
    : options_(options), deadline_us_(esp_timer_get_time() + limit_ms * 1000), last_byte_us_(esp_timer_get_time()) {
    // It would warn at each slice.
    esp_log_level_set("HTTP_CLIENT", ESP_LOG_ERROR);
}

HttpExchange::~HttpExchange() {
    if (client_ == nullptr) return;
    esp_http_client_close(client_);
    esp_http_client_cleanup(client_);
}

esp_err_t HttpExchange::on_event(esp_http_client_event_t *event) {
    auto *exchange = static_cast<HttpExchange *>(event->user_data);
    if (event->event_id == HTTP_EVENT_ON_HEADER) {
        if (strcasecmp(event->header_key, "ETag") == 0) exchange->etag_ = event->header_value;
        exchange->serve();
    }
    if (event->event_id == HTTP_EVENT_ON_DATA) exchange->serve();
    return ESP_OK;
}

// serve runs inside a read, after each piece that came: past the deadline the read
// ends with what it has.
void HttpExchange::serve() {
    esp_task_wdt_reset();
    last_byte_us_ = esp_timer_get_time();
    wait_at_most(slice_ms);
}

void HttpExchange::wait_at_most(std::int64_t ms) {
    const std::int64_t left = (deadline_us_ - esp_timer_get_time() + 999) / 1000;
    if (client_ == nullptr) return;
    esp_http_client_set_timeout_ms(client_, static_cast<int>(std::clamp<std::int64_t>(left, 0, ms)));
}

Status HttpExchange::prepare(std::string_view url, esp_http_client_method_t method) {
    if (!is_web_url(url)) return {Code::invalid, "the url is neither http nor https"};
    url_ = url;
    esp_http_client_config_t config = {};
    config.url = url_.c_str();
    config.method = method;
    config.timeout_ms = options_.stall_ms;
    config.disable_auto_redirect = true;
    config.max_authorization_retries = -1;
    config.event_handler = on_event;
    config.user_data = this;
    config.buffer_size = head_buffer;
    config.buffer_size_tx = head_buffer;
    config.crt_bundle_attach = options_.trust.attach();
    client_ = esp_http_client_init(&config);
    if (client_ == nullptr) return {Code::invalid, "the url was not understood, or memory is short"};
    return {};
}

Status HttpExchange::header(const char *name, const std::string &value) {
    return status_of(esp_http_client_set_header(client_, name, value.c_str()), "a header was not set");
}

Status HttpExchange::connect(int body_length) {
    esp_task_wdt_reset();  // looking up, connecting and TLS may take 30 s
    wait_at_most(options_.stall_ms);
    const esp_err_t err = esp_http_client_open(client_, body_length);
    esp_task_wdt_reset();
    if (err == ESP_OK) return {};
    ESP_LOGW(TAG, "no connection: %s", esp_err_to_name(err));
    return {Code::unavailable, "the web server was not reached"};
}

Status HttpExchange::check_time() const {
    const std::int64_t now = esp_timer_get_time();
    if (now >= deadline_us_) return {Code::timeout, "the web server took too long"};
    if (now - last_byte_us_ >= std::int64_t{options_.stall_ms} * 1000) return {Code::timeout, "the web server stalled"};
    return {};
}

Status HttpExchange::write(const void *data, std::size_t size) {
    const char *next = static_cast<const char *>(data);
    while (size > 0) {
        if (const Status late = check_time(); !late.ok()) return late;
        wait_at_most(options_.stall_ms);
        const int sent = esp_http_client_write(client_, next, static_cast<int>(size));
        if (sent <= 0) return {Code::unavailable, "the connection broke while sending"};
        serve();
        next += sent;
        size -= static_cast<std::size_t>(sent);
    }
    return {};
}

Result<HttpResponse> HttpExchange::answer() {
    std::int64_t length = -ESP_ERR_HTTP_EAGAIN;
    for (last_byte_us_ = esp_timer_get_time(); length == -ESP_ERR_HTTP_EAGAIN;) {
        if (const Status late = check_time(); !late.ok()) return late;
        wait_at_most(slice_ms);
        length = esp_http_client_fetch_headers(client_);
        esp_task_wdt_reset();
    }
    if (length < 0) return Status{Code::unavailable, "the connection broke before the answer"};
    HttpResponse head;
    head.status = esp_http_client_get_status_code(client_);
    if (head.status <= 0) return Status{Code::unavailable, "the answer was no HTTP"};
    head.etag = etag_;
    // 0 means "not stated" as well as an empty body; both read as empty.
    if (length > 0 && !esp_http_client_is_chunked_response(client_)) head.content_length = length;
    return head;
}

Status HttpExchange::read_body(const HttpResponse &head, FunctionRef<Status(Bytes)> sink) {
    const std::unique_ptr<std::uint8_t[]> buffer(new (std::nothrow) std::uint8_t[piece]);
    if (buffer == nullptr) return {Code::no_memory, "no memory for the answer's body"};
    std::int64_t received = 0;
    for (last_byte_us_ = esp_timer_get_time();;) {
        if (const Status late = check_time(); !late.ok()) return late;
        wait_at_most(slice_ms);
        const int size = esp_http_client_read(client_, reinterpret_cast<char *>(buffer.get()), piece);
        esp_task_wdt_reset();
        if (size == -ESP_ERR_HTTP_EAGAIN) continue;
        if (size < 0) return {Code::unavailable, "the connection broke while reading"};
        if (size == 0) return check_end(head, received);
        received += size;
        if (const Status status = sink(Bytes(buffer.get(), static_cast<std::size_t>(size))); !status.ok())
            return status;
    }
}

Status HttpExchange::check_end(const HttpResponse &head, std::int64_t received) const {
    const bool whole = head.content_length >= 0 ? received == head.content_length
                                                : esp_http_client_is_complete_data_received(client_) || received == 0;
    if (whole) return {};
    return {Code::unavailable, "the answer's body ended early"};
}

}  // namespace fleet::esp
