// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/improv.hpp"

namespace fleet::esp::improv {

namespace {

constexpr std::string_view header = "IMPROV\x01";  // and the protocol's version
constexpr std::size_t type_at = header.size();
constexpr std::size_t length_at = type_at + 1;
constexpr std::size_t data_at = length_at + 1;

// Texts follow their length, one byte.
bool take_text(std::string_view &data, std::string &out) {
    if (data.empty()) return false;
    const std::size_t size = static_cast<std::uint8_t>(data[0]);
    if (size > data.size() - 1) return false;
    out = data.substr(1, size);
    data.remove_prefix(1 + size);
    return true;
}

}  // namespace

bool Parser::reject(std::uint8_t byte) {
    position_ = 0;
    sum_ = 0;
    // The byte that broke one packet may begin the next.
    if (byte == static_cast<std::uint8_t>(header[0])) {
        position_ = 1;
        sum_ = byte;
    }
    return false;
}

bool Parser::feed(std::uint8_t byte) {
    if (position_ < type_at) {
        if (byte != static_cast<std::uint8_t>(header[position_])) return reject(byte);
    } else if (position_ == type_at) {
        packet_.type = static_cast<Type>(byte);
        packet_.data.clear();
    } else if (position_ == length_at) {
        length_ = byte;
    } else if (position_ < data_at + length_) {
        packet_.data.push_back(static_cast<char>(byte));
    } else {
        const bool sound = byte == sum_;
        reject(0);
        return sound;
    }
    ++position_;
    sum_ = static_cast<std::uint8_t>(sum_ + byte);
    return false;
}

std::string encode(Type type, std::string_view data) {
    std::string packet(header);
    packet.push_back(static_cast<char>(type));
    packet.push_back(static_cast<char>(data.size()));
    packet.append(data);
    std::uint8_t sum = 0;
    for (const char c : packet)
        sum = static_cast<std::uint8_t>(sum + static_cast<std::uint8_t>(c));
    packet.push_back(static_cast<char>(sum));
    packet.push_back('\n');  // not a part of it: clients that read lines go on here
    return packet;
}

std::string encode_state(State state) {
    return encode(Type::state, std::string(1, static_cast<char>(state)));
}

std::string encode_error(Error error) {
    return encode(Type::error, std::string(1, static_cast<char>(error)));
}

std::string encode_result(Command command, const std::string *texts, std::size_t count) {
    std::string list;
    for (std::size_t i = 0; i < count; ++i) {
        if (list.size() + 1 + texts[i].size() > 253) break;
        list.push_back(static_cast<char>(texts[i].size()));
        list += texts[i];
    }
    std::string data;
    data.push_back(static_cast<char>(command));
    data.push_back(static_cast<char>(list.size()));
    return encode(Type::result, data + list);
}

Result<Credentials> parse_credentials(std::string_view data) {
    Credentials credentials;
    if (!take_text(data, credentials.ssid) || !take_text(data, credentials.password) || !data.empty() ||
        credentials.ssid.empty()) {
        return Status{Code::invalid, "the Wi-Fi credentials are not in Improv's form"};
    }
    return credentials;
}

}  // namespace fleet::esp::improv
