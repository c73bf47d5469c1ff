// SPDX-License-Identifier: Apache-2.0
// Remembers the last requests that changed something, so that a second delivery
// of one (MQTT's QoS 1 says "at least once") does not do it again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

// digest_request distinguishes requests by all their bytes, id included: a server
// that starts its ids again is not taken for a repetition.
std::uint64_t digest_request(std::string_view raw_payload);

enum class Seen : std::uint8_t { never, running, answered };

class RequestRing {
public:
    static constexpr std::size_t max_entries = 16;
    static constexpr std::size_t max_reply = 96;  // longer ones are remembered as done, without their text

    // An answered request is forgotten after so long: no broker delivers again
    // later, and a server that counts its ids from 1 again means what it says.
    static constexpr std::uint32_t keep_s = 600;

    Seen look(std::uint64_t digest, std::uint32_t now_s) const;
    std::string_view reply(std::uint64_t digest) const;     // "" if it was too long
    void start(std::uint64_t digest, std::uint32_t now_s);  // pushes the oldest entry out
    void answer(std::uint64_t digest, std::string_view reply);

private:
    struct Entry {
        std::uint64_t digest = 0;
        std::uint32_t started_s = 0;  // since boot
        std::uint8_t size = 0;
        Seen seen = Seen::never;
        std::array<char, max_reply> reply;
    };

    const Entry *find(std::uint64_t digest) const;

    std::array<Entry, max_entries> entries_{};
    std::size_t next_ = 0;
};

}  // namespace fleet
