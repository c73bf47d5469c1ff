// SPDX-License-Identifier: Apache-2.0
// Improv over a serial line: how a browser that has just flashed a device gives
// it its Wi-Fi. Only the packets; see improv_service.hpp for what they do.
#pragma once

#include "fleet/status.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fleet::esp::improv {

enum class Type : std::uint8_t { state = 1, error = 2, command = 3, result = 4 };
enum class State : std::uint8_t { ready = 2, provisioning = 3, provisioned = 4 };
enum class Error : std::uint8_t { none = 0, bad_packet = 1, unknown_command = 2, no_connection = 3, unknown = 0xff };
enum class Command : std::uint8_t { send_wifi = 1, get_state = 2, get_device = 3, get_networks = 4 };

struct Packet {
    Type type = Type::state;
    std::string data;
};

// A Parser finds packets in a stream that carries other text as well.
class Parser {
public:
    // feed is true when byte has completed a packet, which packet() then gives
    // until the next byte. A wrong checksum drops the packet.
    bool feed(std::uint8_t byte);
    const Packet &packet() const { return packet_; }

private:
    bool reject(std::uint8_t byte);

    std::size_t position_ = 0;
    std::uint8_t sum_ = 0;
    std::uint8_t length_ = 0;
    Packet packet_;
};

std::string encode(Type type, std::string_view data);
std::string encode_state(State state);
std::string encode_error(Error error);
// encode_result takes texts of up to 255 bytes in all, lengths included, and
// leaves out what is more.
std::string encode_result(Command command, const std::string *texts, std::size_t count);

struct Credentials {
    std::string ssid;
    std::string password;
};
// parse_credentials reads the data of a send_wifi command, behind its length.
Result<Credentials> parse_credentials(std::string_view data);

}  // namespace fleet::esp::improv
