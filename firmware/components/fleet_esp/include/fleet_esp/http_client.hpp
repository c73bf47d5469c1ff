// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/server_trust.hpp"

namespace fleet::esp {

struct HttpOptions {
    ServerTrust trust;
    int stall_ms = 15000;                   // longest time without a byte
    std::int64_t exchange_ms = 60000;       // a whole post()
    std::int64_t transfer_ms = 30 * 60000;  // a whole file, either way
};

// EspHttpClient makes one connection per request and follows no redirect. It
// feeds the task watchdog while bytes move.
class EspHttpClient final : public HttpClient {
public:
    explicit EspHttpClient(const HttpOptions &options) : options_(options) {}

    Result<HttpResponse> get(std::string_view url, std::int64_t range_from,
                             FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) override;
    Result<HttpResponse> post(std::string_view url, const HttpHeader *headers, std::size_t header_count, Bytes body,
                              std::string &reply, std::size_t reply_limit) override;
    Result<HttpResponse> post_file(std::string_view url, std::string_view file_name, std::string_view media_type,
                                   FunctionRef<Result<std::size_t>(MutableBytes)> source) override;

private:
    HttpOptions options_;
};

}  // namespace fleet::esp
