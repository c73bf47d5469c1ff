// SPDX-License-Identifier: Apache-2.0
// The answer to a boot poll. Nothing in it may bring the device down: a section
// that makes no sense is left out, the others count.
#pragma once

#include "fleet/ports.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

constexpr std::size_t max_job = 48;

struct Activation {
    std::string code;
    std::string message;
    std::string challenge;
    bool due() const { return !code.empty() || !challenge.empty(); }
};

// FirmwareOrder is an image to install. Only version and url come from stock
// servers; the rest makes the device safer where it is given.
struct FirmwareOrder {
    std::string version;
    std::string url;
    std::string job;        // how the server calls it, if it does; max_job at most
    std::string sha256;     // of the whole image, hex
    std::string manifest;   // JSON text, and
    std::string signature;  // base64 of its Ed25519 signature
    std::int64_t size = 0;  // 0: not stated
    bool force = false;
    bool due() const { return !url.empty(); }
};

struct ServerTime {
    std::int64_t unix_ms = 0;  // UTC; 0: not stated
    std::int32_t zone_minutes = 0;
};

struct PollAnswer {
    BrokerSettings broker;
    Status broker_status{Code::not_found, "no mqtt section"};  // ok: broker is usable
    Activation activation;
    FirmwareOrder firmware;
    ServerTime time;
    std::string key_challenge;  // to be signed with the device's key before there are credentials; "" without one
};

// parse_poll_answer fills a fresh answer.
Status parse_poll_answer(std::string_view text, PollAnswer &answer);

// read_broker reads an mqtt section: of a poll's answer, or as it was saved.
Status read_broker(std::string_view json, BrokerSettings &settings);

// save_broker writes what read_broker reads.
std::string save_broker(const BrokerSettings &settings);

}  // namespace fleet
