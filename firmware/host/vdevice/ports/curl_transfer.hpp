// SPDX-License-Identifier: Apache-2.0
// One transfer: a curl handle, what its answer's head said, and why it stopped.
#pragma once

#include "fleet/ports.hpp"
#include "ports/curl_http.hpp"

#include <curl/curl.h>

namespace fleet::host {

class Transfer {
public:
    Transfer(std::string_view url, const HttpLimits &limits, long limit_s);
    ~Transfer();
    Transfer(const Transfer &) = delete;
    Transfer &operator=(const Transfer &) = delete;

    CURL *handle() { return handle_; }
    void header(const std::string &line);
    void resume_from(std::int64_t offset);
    Result<HttpResponse> perform();

    std::function<Status(const HttpResponse &)> begin;
    std::function<Status(Bytes)> sink;
    Status failure;  // of a callback; ends the transfer

private:
    static std::size_t on_header(char *line, std::size_t size, std::size_t count, void *self);
    static std::size_t on_body(char *data, std::size_t size, std::size_t count, void *self);
    void take_header(std::string_view line);
    bool announce();

    CURL *handle_;
    bool is_web_;
    curl_slist *headers_ = nullptr;
    HttpResponse response_;
    std::int64_t resume_from_ = 0;
    std::int64_t range_start_ = -1;
    bool announced_ = false;
};

}  // namespace fleet::host
