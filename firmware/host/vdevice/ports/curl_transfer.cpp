// SPDX-License-Identifier: Apache-2.0
#include "ports/curl_transfer.hpp"

#include <strings.h>
#include <cstdlib>

namespace fleet::host {

namespace {

Status verdict(CURLcode code) {
    switch (code) {
        case CURLE_OK: return {};
        case CURLE_URL_MALFORMAT: return {Code::invalid, "the URL makes no sense"};
        case CURLE_UNSUPPORTED_PROTOCOL: return {Code::unavailable, "the server does not speak HTTP/1.1"};
        case CURLE_COULDNT_RESOLVE_HOST: return {Code::unavailable, "the server's name is not known"};
        case CURLE_COULDNT_CONNECT: return {Code::unavailable, "the server cannot be reached"};
        case CURLE_OPERATION_TIMEDOUT: return {Code::timeout, "the server took too long"};
        case CURLE_PARTIAL_FILE: return {Code::unavailable, "the answer ended early"};
        case CURLE_PEER_FAILED_VERIFICATION: return {Code::refused, "the server's certificate was not accepted"};
        default: return {Code::unavailable, "the connection to the server failed"};
    }
}

// The value of a header line, if it is the one named.
bool value_of(std::string_view line, std::string_view name, std::string_view &value) {
    if (line.size() <= name.size() || line[name.size()] != ':') return false;
    if (strncasecmp(line.data(), name.data(), name.size()) != 0) return false;
    value = line.substr(name.size() + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t'))
        value.remove_prefix(1);
    while (!value.empty() && static_cast<unsigned char>(value.back()) <= ' ')
        value.remove_suffix(1);
    return true;
}

}  // namespace

Transfer::Transfer(std::string_view url, const HttpLimits &limits, long limit_s)
    : handle_(curl_easy_init()), is_web_(url.substr(0, 7) == "http://" || url.substr(0, 8) == "https://") {
    curl_easy_setopt(handle_, CURLOPT_URL, std::string(url).c_str());
    curl_easy_setopt(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle_, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(handle_, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    curl_easy_setopt(handle_, CURLOPT_PROXY, "");
    curl_easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle_, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(handle_, CURLOPT_CONNECTTIMEOUT, limits.connect_s);
    curl_easy_setopt(handle_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(handle_, CURLOPT_LOW_SPEED_TIME, limits.stall_s);
    curl_easy_setopt(handle_, CURLOPT_TIMEOUT, limit_s);
    if (!limits.ca_file.empty()) curl_easy_setopt(handle_, CURLOPT_CAINFO, limits.ca_file.c_str());
    curl_easy_setopt(handle_, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(handle_, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(handle_, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(handle_, CURLOPT_WRITEDATA, this);
    header("Connection: close");
    header("Expect:");  // no 100-continue: stock devices send none
}

Transfer::~Transfer() {
    curl_slist_free_all(headers_);
    curl_easy_cleanup(handle_);
}

void Transfer::header(const std::string &line) {
    headers_ = curl_slist_append(headers_, line.c_str());
}

void Transfer::resume_from(std::int64_t offset) {
    if (offset <= 0) return;
    resume_from_ = offset;
    curl_easy_setopt(handle_, CURLOPT_RANGE, (std::to_string(offset) + "-").c_str());
}

std::size_t Transfer::on_header(char *line, std::size_t size, std::size_t count, void *self) {
    static_cast<Transfer *>(self)->take_header({line, size * count});
    return size * count;
}

void Transfer::take_header(std::string_view line) {
    std::string_view value;
    if (line.substr(0, 5) == "HTTP/") {
        response_ = {};
    } else if (value_of(line, "Content-Length", value)) {
        response_.content_length = std::strtoll(std::string(value).c_str(), nullptr, 10);
    } else if (value_of(line, "ETag", value)) {
        response_.etag = std::string(value);
    } else if (value_of(line, "Content-Range", value) && value.substr(0, 6) == "bytes ") {
        range_start_ = std::strtoll(std::string(value.substr(6)).c_str(), nullptr, 10);
    }
}

// announce hands the head to begin, once; false ends the transfer.
bool Transfer::announce() {
    if (announced_) return true;
    announced_ = true;
    long status = 0;
    curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    response_.status = static_cast<int>(status);
    if (status == 206 && range_start_ != resume_from_) {
        failure = {Code::corrupt, "the server sends another part of the file than was asked for"};
    } else if (begin) {
        failure = begin(response_);
    }
    return failure.ok();
}

std::size_t Transfer::on_body(char *data, std::size_t size, std::size_t count, void *self) {
    auto &transfer = *static_cast<Transfer *>(self);
    const std::size_t length = size * count;
    if (!transfer.announce()) return 0;
    if (transfer.sink) transfer.failure = transfer.sink({reinterpret_cast<std::uint8_t *>(data), length});
    return transfer.failure.ok() ? length : 0;
}

Result<HttpResponse> Transfer::perform() {
    if (!is_web_) return Status{Code::invalid, "only http and https URLs are fetched"};
    curl_easy_setopt(handle_, CURLOPT_HTTPHEADER, headers_);
    const CURLcode code = curl_easy_perform(handle_);
    if (!failure.ok()) return failure;
    if (code != CURLE_OK) return verdict(code);
    if (!announce()) return failure;
    return response_;
}

}  // namespace fleet::host
