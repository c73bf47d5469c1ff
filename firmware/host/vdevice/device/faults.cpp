// SPDX-License-Identifier: Apache-2.0
#include "device/faults.hpp"

#include "ports/file_io.hpp"
#include "ports/posix_system.hpp"
#include "ports/steps.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

namespace fleet::host {

namespace {

constexpr const char *known[] = {"kill",      "reset-at",  "drop-at",   "corrupt-at", "rate",
                                 "drop-mqtt", "duplicate", "full-disk", "clock-jump"};

bool is_known(const std::string &name) {
    return std::any_of(std::begin(known), std::end(known), [&](const char *k) { return name == k; });
}

bool holds(std::int64_t at, Bytes chunk, std::int64_t byte) {
    return byte >= at && byte < at + static_cast<std::int64_t>(chunk.size);
}

const Status offline{Code::unavailable, "this image has no network"};

}  // namespace

Result<Faults> Faults::parse(const std::vector<std::string> &specs, std::string state_dir) {
    Faults faults;
    faults.state_dir_ = std::move(state_dir);
    for (const std::string &spec : specs) {
        const std::size_t at = spec.find('=');
        const std::string name = spec.substr(0, at);
        if (!is_known(name)) return Status{Code::invalid, "a fault is not known"};
        faults.values_[name] = at == std::string::npos ? "1" : spec.substr(at + 1);
    }
    return faults;
}

std::int64_t Faults::number(const std::string &name) const {
    return std::strtoll(text(name).c_str(), nullptr, 10);
}

std::int64_t Faults::after_colon(const std::string &name, std::int64_t otherwise) const {
    const std::size_t colon = text(name).find(':');
    return colon == std::string::npos ? otherwise : std::strtoll(text(name).c_str() + colon + 1, nullptr, 10);
}

const std::string &Faults::text(const std::string &name) const {
    static const std::string nothing;
    const auto found = values_.find(name);
    return found == values_.end() ? nothing : found->second;
}

bool Faults::take_once(const std::string &name) {
    if (!has(name)) return false;
    const std::string note = state_dir_ + "/fault-" + name;
    if (read_file(note, 16).ok()) return false;
    return replace_file(note, Bytes{"done"}).ok();
}

void arm_kill(const Faults &faults) {
    if (!faults.has("kill")) return;
    const std::string spec = faults.text("kill");
    const std::size_t colon = spec.find(':');
    const bool any = spec.find_first_not_of("0123456789") == std::string::npos;
    const std::string step = any ? "" : spec.substr(0, colon);
    const std::int64_t count = any ? faults.number("kill") : faults.after_colon("kill", 1);
    auto left = std::make_shared<std::atomic<std::int64_t>>(count);
    on_step([step, left](const char *name) {
        if (!step.empty() && step != name) return;
        if (--*left == 0) raise(SIGKILL);
    });
}

Status FaultyHttp::pass(std::int64_t at, Bytes chunk, FunctionRef<Status(Bytes)> sink) {
    if (const std::int64_t rate = faults_.number("rate"); rate > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(chunk.size) * 1000000 / rate));
    }
    if (holds(at, chunk, faults_.number("reset-at")) && faults_.take_once("reset-at")) reset(ResetReason::power_on);
    if (holds(at, chunk, faults_.number("drop-at")) && faults_.take_once("drop-at")) {
        return {Code::unavailable, "the connection was lost"};
    }
    const std::int64_t bad = faults_.number("corrupt-at");
    if (!holds(at, chunk, bad) || !faults_.take_once("corrupt-at")) return sink(chunk);
    std::string damaged(chunk.text());
    char &byte = damaged[static_cast<std::size_t>(bad - at)];
    byte = static_cast<char>(byte ^ 1);
    return sink(Bytes{damaged});
}

Result<HttpResponse> FaultyHttp::reported(std::string_view url, Result<HttpResponse> outcome) const {
    if (!outcome.ok() && on_failure) on_failure(url, outcome.status());
    return outcome;
}

Result<HttpResponse> FaultyHttp::get(std::string_view url, std::int64_t range_from,
                                     FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) {
    if (!connected_) return reported(url, offline);
    std::int64_t at = 0;
    const auto outcome = inner_.get(
        url, range_from,
        [&](const HttpResponse &head) {
            at = head.status == 206 ? range_from : 0;
            return begin(head);
        },
        [&](Bytes chunk) {
            const Status passed = pass(at, chunk, sink);
            at += static_cast<std::int64_t>(chunk.size);
            return passed;
        });
    return reported(url, outcome);
}

Result<HttpResponse> FaultyHttp::post(std::string_view url, const HttpHeader *headers, std::size_t header_count,
                                      Bytes body, std::string &reply, std::size_t reply_limit) {
    if (!connected_) return reported(url, offline);
    return reported(url, inner_.post(url, headers, header_count, body, reply, reply_limit));
}

Result<HttpResponse> FaultyHttp::post_file(std::string_view url, std::string_view file_name,
                                           std::string_view media_type,
                                           FunctionRef<Result<std::size_t>(MutableBytes)> source) {
    if (!connected_) return reported(url, offline);
    return reported(url, inner_.post_file(url, file_name, media_type, source));
}

}  // namespace fleet::host
