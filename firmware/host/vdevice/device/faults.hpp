// SPDX-License-Identifier: Apache-2.0
// Faults on request: the list of --fault, and the ports that they go through.
#pragma once

#include "fleet/ports.hpp"

#include <atomic>
#include <map>
#include <string>
#include <vector>

namespace fleet::host {

class Faults {
public:
    // parse reads "name" and "name=value" specs. What happens once is noted in
    // the state directory: a restart does not make it happen again.
    static Result<Faults> parse(const std::vector<std::string> &specs, std::string state_dir);

    bool has(const std::string &name) const { return values_.count(name) != 0; }
    std::int64_t number(const std::string &name) const;                               // 0 if it is not asked for
    std::int64_t after_colon(const std::string &name, std::int64_t otherwise) const;  // "name=1:2" has 2
    const std::string &text(const std::string &name) const;
    bool take_once(const std::string &name);  // true the first time, if asked for

private:
    std::map<std::string, std::string> values_;
    std::string state_dir_;
};

// arm_kill makes the process die at the step that a kill= fault names.
void arm_kill(const Faults &faults);

// FaultyHttp is the network between device and server.
class FaultyHttp final : public HttpClient {
public:
    FaultyHttp(HttpClient &inner, Faults &faults, bool connected)
        : inner_(inner), faults_(faults), connected_(connected) {}
    // Called on the thread of the request that failed.
    std::function<void(std::string_view url, const Status &why)> on_failure;

    Result<HttpResponse> get(std::string_view url, std::int64_t range_from,
                             FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) override;
    Result<HttpResponse> post(std::string_view url, const HttpHeader *headers, std::size_t header_count, Bytes body,
                              std::string &reply, std::size_t reply_limit) override;
    Result<HttpResponse> post_file(std::string_view url, std::string_view file_name, std::string_view media_type,
                                   FunctionRef<Result<std::size_t>(MutableBytes)> source) override;

private:
    Result<HttpResponse> reported(std::string_view url, Result<HttpResponse> outcome) const;
    Status pass(std::int64_t at, Bytes chunk, FunctionRef<Status(Bytes)> sink);

    HttpClient &inner_;
    Faults &faults_;
    bool connected_;
};

// FaultyUpdater is the flash: full-disk.
class FaultyUpdater final : public Updater {
public:
    FaultyUpdater(Updater &inner, const Faults &faults) : inner_(inner), full_(faults.has("full-disk")) {}
    SlotInfo running() const override { return inner_.running(); }
    Result<SlotInfo> other() const override { return inner_.other(); }
    Status begin(std::uint32_t size, std::uint32_t from) override { return inner_.begin(size, from); }
    Status write(Bytes chunk) override {
        return full_ ? Status{Code::no_space, "the other slot cannot be written: no space"} : inner_.write(chunk);
    }
    Status finish() override { return inner_.finish(); }
    void abort() override { inner_.abort(); }
    Status read_back(std::uint32_t offset, MutableBytes into) override { return inner_.read_back(offset, into); }
    Status boot_other() override { return inner_.boot_other(); }
    Status mark_valid() override { return inner_.mark_valid(); }
    Status mark_invalid() override { return inner_.mark_invalid(); }

private:
    Updater &inner_;
    bool full_;
};

}  // namespace fleet::host
