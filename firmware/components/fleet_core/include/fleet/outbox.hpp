// SPDX-License-Identifier: Apache-2.0
// Messages that wait for the connection, in a buffer of fixed size. When it is
// full the oldest go, and are counted; what can be spared goes first.
#pragma once

#include "fleet/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace fleet {

// What a message is worth once it has to wait.
enum class Keep : std::uint8_t {
    no,      // gone if it cannot be sent now
    spare,   // heartbeats: never at the cost of what always is kept
    always,  // outcomes
};

class Outbox {
public:
    explicit Outbox(std::size_t bytes) : capacity_(bytes), buffer_(new char[bytes]) {}

    // push refuses what could never fit, and what is spare when there is no room.
    Status push(std::string_view message, Keep keep = Keep::always);
    // front stays until pop, so that a message whose sending fails is kept.
    std::string_view front() const;
    void pop();

    bool empty() const { return used_ == 0; }
    std::size_t count() const { return count_; }
    std::uint32_t dropped() const { return dropped_; }

private:
    static constexpr std::size_t head_bytes = 2;  // the length, and a bit for spare ones
    static constexpr std::size_t spare_bit = 0x8000;

    std::size_t head_at(std::size_t at) const;
    std::size_t size_at(std::size_t at) const { return head_bytes + (head_at(at) & ~spare_bit); }
    bool drop_oldest(bool spare_only);
    void erase(std::size_t at);

    std::size_t capacity_;
    std::unique_ptr<char[]> buffer_;
    std::size_t used_ = 0;
    std::size_t count_ = 0;
    std::uint32_t dropped_ = 0;
};

}  // namespace fleet
