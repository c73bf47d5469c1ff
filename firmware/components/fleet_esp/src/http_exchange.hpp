// SPDX-License-Identifier: Apache-2.0
// One request of esp_http_client, from connecting to the last byte.
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/http_client.hpp"

#include "esp_http_client.h"

#include <string>

namespace fleet::esp {

class HttpExchange {
public:
    HttpExchange(const HttpOptions &options, std::int64_t limit_ms);
    ~HttpExchange();
    HttpExchange(const HttpExchange &) = delete;
    HttpExchange &operator=(const HttpExchange &) = delete;

    Status prepare(std::string_view url, esp_http_client_method_t method);
    Status header(const char *name, const std::string &value);
    // connect sends the request's head. A length of chunked means that the body
    // follows in chunks, which the caller frames.
    static constexpr int chunked = -1;
    Status connect(int body_length);
    Status write(const void *data, std::size_t size);
    // answer waits for the answer's head.
    Result<HttpResponse> answer();
    // read_body streams the body and fails if it ends early.
    Status read_body(const HttpResponse &head, FunctionRef<Status(Bytes)> sink);

private:
    static esp_err_t on_event(esp_http_client_event_t *event);
    void serve();
    Status check_time() const;
    void wait_at_most(std::int64_t ms);
    Status check_end(const HttpResponse &head, std::int64_t received) const;

    const HttpOptions &options_;
    std::int64_t deadline_us_;
    std::int64_t last_byte_us_;
    esp_http_client_handle_t client_ = nullptr;
    std::string url_;
    std::string etag_;
};

}  // namespace fleet::esp
