// SPDX-License-Identifier: Apache-2.0
// What functions that can fail return. No exceptions: ESP-IDF builds without them.
#pragma once

#include <cstdint>
#include <utility>

namespace fleet {

// A code says which kind of failure, for programs; it is stable on the wire
// (job outcomes, telemetry) and in SQL on the server.
enum class Code : std::uint8_t {
    ok,
    invalid,  // the request or its bytes make no sense
    not_found,
    busy,  // something that excludes this is under way
    no_memory,
    no_space,  // flash, file system or a bounded queue is full
    timeout,
    unavailable,   // the network, the broker or a peripheral is not there
    refused,       // by policy: scope, host list, pending image
    corrupt,       // checksum, hash, signature or layout is wrong
    wrong_target,  // an image for another chip, project or an older secure version
    io,            // reading or writing failed
    unsupported,   // this board cannot
    canceled,
    rolled_back,  // the device went back to the image it ran before
};

// The name of a code in snake_case.
constexpr const char *to_string(Code code) {
    switch (code) {
        case Code::ok: return "ok";
        case Code::invalid: return "invalid";
        case Code::not_found: return "not_found";
        case Code::busy: return "busy";
        case Code::no_memory: return "no_memory";
        case Code::no_space: return "no_space";
        case Code::timeout: return "timeout";
        case Code::unavailable: return "unavailable";
        case Code::refused: return "refused";
        case Code::corrupt: return "corrupt";
        case Code::wrong_target: return "wrong_target";
        case Code::io: return "io";
        case Code::unsupported: return "unsupported";
        case Code::rolled_back: return "rolled_back";
        case Code::canceled: return "canceled";
    }
    return "invalid";
}

// A failure carries a code and one sentence in static storage: what happened,
// to what. It costs two words and no heap.
struct [[nodiscard]] Status {
    Code code = Code::ok;
    const char *why = "";

    constexpr Status() = default;
    constexpr Status(Code c, const char *sentence) : code(c), why(sentence) {}
    [[nodiscard]] constexpr bool ok() const { return code == Code::ok; }
};

// A Result is a value or the reason why it is missing.
template <typename T>
class [[nodiscard]] Result {
public:
    // Implicit, so that a function returns either as it is.
    Result(T value) : value_(std::move(value)) {}
    Result(Status failure) : status_(failure) {}
    [[nodiscard]] bool ok() const { return status_.ok(); }
    [[nodiscard]] const Status &status() const { return status_; }
    T &value() { return value_; }
    const T &value() const { return value_; }

private:
    T value_{};
    Status status_{};
};

}  // namespace fleet
