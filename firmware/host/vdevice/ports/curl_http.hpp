// SPDX-License-Identifier: Apache-2.0
// The HttpClient by libcurl: no redirects, no proxies, bounded times.
#pragma once

#include "fleet/ports.hpp"

namespace fleet::host {

struct HttpLimits {
    std::string ca_file;  // "" takes the system's
    long connect_s = 10;
    long stall_s = 30;    // without a byte
    long request_s = 60;  // a whole post
    long download_s = 30 * 60;
};

class CurlHttp final : public HttpClient {
public:
    explicit CurlHttp(HttpLimits limits = {});
    Result<HttpResponse> get(std::string_view url, std::int64_t range_from,
                             FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) override;
    Result<HttpResponse> post(std::string_view url, const HttpHeader *headers, std::size_t header_count, Bytes body,
                              std::string &reply, std::size_t reply_limit) override;
    Result<HttpResponse> post_file(std::string_view url, std::string_view file_name, std::string_view media_type,
                                   FunctionRef<Result<std::size_t>(MutableBytes)> source) override;

private:
    HttpLimits limits_;
};

}  // namespace fleet::host
