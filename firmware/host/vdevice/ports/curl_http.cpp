// SPDX-License-Identifier: Apache-2.0
#include "ports/curl_http.hpp"

#include "ports/curl_transfer.hpp"

#include <mutex>

namespace fleet::host {

namespace {

constexpr std::size_t discard_limit = 64 * 1024;

// Source hands curl the bytes of an upload, and keeps the reason of a failure.
struct Source {
    FunctionRef<Result<std::size_t>(MutableBytes)> read;
    Status failure;

    static std::size_t pull(char *into, std::size_t size, std::size_t count, void *self) {
        auto &source = *static_cast<Source *>(self);
        const auto got = source.read({reinterpret_cast<std::uint8_t *>(into), size * count});
        if (got.ok()) return got.value();
        source.failure = got.status();
        return CURL_READFUNC_ABORT;
    }
};

}  // namespace

CurlHttp::CurlHttp(HttpLimits limits) : limits_(std::move(limits)) {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

Result<HttpResponse> CurlHttp::get(std::string_view url, std::int64_t range_from,
                                   FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) {
    Transfer transfer(url, limits_, limits_.download_s);
    transfer.begin = begin;
    transfer.sink = sink;
    transfer.resume_from(range_from);
    return transfer.perform();
}

Result<HttpResponse> CurlHttp::post(std::string_view url, const HttpHeader *headers, std::size_t header_count,
                                    Bytes body, std::string &reply, std::size_t reply_limit) {
    Transfer transfer(url, limits_, limits_.request_s);
    for (std::size_t i = 0; i < header_count; ++i) {
        if (headers[i].value.find_first_of("\r\n") != std::string::npos) {
            return Status{Code::invalid, "a header's value has a line break"};
        }
        transfer.header(std::string(headers[i].name) + ": " + headers[i].value);
    }
    curl_easy_setopt(transfer.handle(), CURLOPT_POST, 1L);
    curl_easy_setopt(transfer.handle(), CURLOPT_POSTFIELDS, body.size == 0 ? "" : body.text().data());
    curl_easy_setopt(transfer.handle(), CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size));
    reply.clear();
    transfer.sink = [&](Bytes part) -> Status {
        if (reply.size() + part.size > reply_limit) return {Code::no_memory, "the answer is longer than allowed"};
        reply.append(part.text());
        return {};
    };
    return transfer.perform();
}

Result<HttpResponse> CurlHttp::post_file(std::string_view url, std::string_view file_name, std::string_view media_type,
                                         FunctionRef<Result<std::size_t>(MutableBytes)> source) {
    Transfer transfer(url, limits_, limits_.request_s);
    Source from{source, {}};
    curl_mime *form = curl_mime_init(transfer.handle());
    curl_mimepart *part = curl_mime_addpart(form);
    curl_mime_name(part, "file");
    curl_mime_filename(part, std::string(file_name).c_str());
    curl_mime_type(part, std::string(media_type).c_str());
    curl_mime_data_cb(part, -1, Source::pull, nullptr, nullptr, &from);  // unknown length: chunked
    curl_easy_setopt(transfer.handle(), CURLOPT_MIMEPOST, form);
    std::size_t received = 0;
    transfer.sink = [&](Bytes bytes) -> Status {
        received += bytes.size;
        return received > discard_limit ? Status{Code::invalid, "the server answers an upload at length"} : Status{};
    };
    Result<HttpResponse> result = transfer.perform();
    curl_mime_free(form);
    if (!from.failure.ok()) return from.failure;
    return result;
}

}  // namespace fleet::host
