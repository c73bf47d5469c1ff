// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/http_client.hpp"

#include "http_exchange.hpp"

#include <cstdio>
#include <memory>
#include <new>

namespace fleet::esp {

namespace {

constexpr std::size_t upload_piece = 2048;
constexpr const char *boundary = "fleet-0f6b1d5e8c7a4932";
constexpr std::size_t longest_small_answer = 1024;

// A file's body goes out in chunks, since its length is not known before.
Status write_chunk(HttpExchange &exchange, Bytes bytes) {
    char head[12];
    const int size = std::snprintf(head, sizeof head, "%x\r\n", static_cast<unsigned>(bytes.size));
    Status status = exchange.write(head, static_cast<std::size_t>(size));
    if (status.ok()) status = exchange.write(bytes.data, bytes.size);
    if (status.ok()) status = exchange.write("\r\n", 2);
    return status;
}

std::string part_head(std::string_view file_name, std::string_view media_type) {
    std::string head = "--";
    head.append(boundary).append("\r\nContent-Disposition: form-data; name=\"file\"; filename=\"");
    for (const char c : file_name)
        head.push_back(c < ' ' || c == '"' || c == '\\' ? '_' : c);
    return head.append("\"\r\nContent-Type: ").append(media_type).append("\r\n\r\n");
}

Status write_part(HttpExchange &exchange, FunctionRef<Result<std::size_t>(MutableBytes)> source) {
    const std::unique_ptr<std::uint8_t[]> buffer(new (std::nothrow) std::uint8_t[upload_piece]);
    if (buffer == nullptr) return {Code::no_memory, "no memory for the upload"};
    for (;;) {
        const Result<std::size_t> filled = source({buffer.get(), upload_piece});
        if (!filled.ok()) return filled.status();
        if (filled.value() == 0) return {};
        const Status status = write_chunk(exchange, {buffer.get(), filled.value()});
        if (!status.ok()) return status;
    }
}

Status write_multipart(HttpExchange &exchange, const std::string &head,
                       FunctionRef<Result<std::size_t>(MutableBytes)> source) {
    std::string tail = "\r\n--";
    tail.append(boundary).append("--\r\n");
    Status status = write_chunk(exchange, Bytes(head));
    if (status.ok()) status = write_part(exchange, source);
    if (status.ok()) status = write_chunk(exchange, Bytes(tail));
    if (status.ok()) status = exchange.write("0\r\n\r\n", 5);
    return status;
}

Status collect(HttpExchange &exchange, const HttpResponse &head, std::string &reply, std::size_t limit) {
    return exchange.read_body(head, [&reply, limit](Bytes bytes) -> Status {
        if (bytes.size > limit - reply.size()) return {Code::no_space, "the answer is longer than expected"};
        reply.append(bytes.text());
        return {};
    });
}

Result<HttpResponse> finish(HttpExchange &exchange, std::string &reply, std::size_t limit) {
    Result<HttpResponse> head = exchange.answer();
    if (!head.ok()) return head;
    reply.clear();
    const Status status = collect(exchange, head.value(), reply, limit);
    if (!status.ok()) return status;
    return head;
}

}  // namespace

Result<HttpResponse> EspHttpClient::get(std::string_view url, std::int64_t range_from,
                                        FunctionRef<Status(const HttpResponse &)> begin,
                                        FunctionRef<Status(Bytes)> sink) {
    HttpExchange exchange(options_, options_.transfer_ms);
    Status status = exchange.prepare(url, HTTP_METHOD_GET);
    if (status.ok() && range_from > 0) {
        status = exchange.header("Range", "bytes=" + std::to_string(range_from) + "-");
    }
    if (status.ok()) status = exchange.connect(0);
    if (!status.ok()) return status;
    Result<HttpResponse> head = exchange.answer();
    if (!head.ok()) return head;
    status = begin(head.value());
    if (status.ok()) status = exchange.read_body(head.value(), sink);
    if (!status.ok()) return status;
    return head;
}

Result<HttpResponse> EspHttpClient::post(std::string_view url, const HttpHeader *headers, std::size_t header_count,
                                         Bytes body, std::string &reply, std::size_t reply_limit) {
    HttpExchange exchange(options_, options_.exchange_ms);
    Status status = exchange.prepare(url, HTTP_METHOD_POST);
    for (std::size_t i = 0; status.ok() && i < header_count; ++i) {
        status = exchange.header(headers[i].name, headers[i].value);
    }
    if (status.ok()) status = exchange.connect(static_cast<int>(body.size));
    if (status.ok()) status = exchange.write(body.data, body.size);
    if (!status.ok()) return status;
    return finish(exchange, reply, reply_limit);
}

Result<HttpResponse> EspHttpClient::post_file(std::string_view url, std::string_view file_name,
                                              std::string_view media_type,
                                              FunctionRef<Result<std::size_t>(MutableBytes)> source) {
    HttpExchange exchange(options_, options_.transfer_ms);
    Status status = exchange.prepare(url, HTTP_METHOD_POST);
    if (status.ok()) {
        status = exchange.header("Content-Type", std::string("multipart/form-data; boundary=") + boundary);
    }
    if (status.ok()) status = exchange.connect(HttpExchange::chunked);
    if (status.ok()) status = write_multipart(exchange, part_head(file_name, media_type), source);
    if (!status.ok()) return status;
    std::string ignored;
    return finish(exchange, ignored, longest_small_answer);
}

}  // namespace fleet::esp
