// SPDX-License-Identifier: Apache-2.0
// Messages that wait for the connection, in a buffer of fixed size. When it is
// full the oldest go, and are counted.
#pragma once

#include "fleet/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace fleet {

class Outbox {
public:
    explicit Outbox(std::size_t bytes) : capacity_(bytes), buffer_(new char[bytes]) {}

    // push refuses only what could never fit.
    Status push(std::string_view message);
    // front stays until pop, so that a message whose sending fails is kept.
    std::string_view front() const;
    void pop();

    bool empty() const { return count_ == 0; }
    std::size_t count() const { return count_; }
    std::uint32_t dropped() const { return dropped_; }

private:
    static constexpr std::size_t kHead = 2;  // the length
    std::size_t front_size() const;

    std::size_t capacity_;
    std::unique_ptr<char[]> buffer_;
    std::size_t start_ = 0;
    std::size_t end_ = 0;
    std::size_t count_ = 0;
    std::uint32_t dropped_ = 0;
};

}  // namespace fleet
