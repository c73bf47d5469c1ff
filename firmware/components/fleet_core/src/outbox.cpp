// SPDX-License-Identifier: Apache-2.0
#include "fleet/outbox.hpp"

#include <cstring>

namespace fleet {

std::size_t Outbox::front_size() const {
    const auto *p = reinterpret_cast<const unsigned char *>(buffer_.get() + start_);
    return static_cast<std::size_t>(p[0]) << 8 | p[1];
}

Status Outbox::push(std::string_view message) {
    const std::size_t need = kHead + message.size();
    if (need > capacity_ || message.size() > 0xffff) return {Code::no_space, "message is longer than the outbox"};
    while (end_ - start_ + need > capacity_) {
        pop();
        dropped_++;
    }
    if (end_ + need > capacity_) {
        std::memmove(buffer_.get(), buffer_.get() + start_, end_ - start_);
        end_ -= start_;
        start_ = 0;
    }
    buffer_[end_] = static_cast<char>(message.size() >> 8);
    buffer_[end_ + 1] = static_cast<char>(message.size() & 0xff);
    if (!message.empty()) std::memcpy(buffer_.get() + end_ + kHead, message.data(), message.size());
    end_ += need;
    count_++;
    return {};
}

std::string_view Outbox::front() const {
    if (empty()) return {};
    return {buffer_.get() + start_ + kHead, front_size()};
}

void Outbox::pop() {
    if (empty()) return;
    start_ += kHead + front_size();
    count_--;
}

}  // namespace fleet
