// SPDX-License-Identifier: Apache-2.0
#include "fleet/outbox.hpp"

#include <cstring>

namespace fleet {

std::size_t Outbox::head_at(std::size_t at) const {
    const auto *p = reinterpret_cast<const unsigned char *>(buffer_.get() + at);
    return static_cast<std::size_t>(p[0]) << 8 | p[1];
}

Status Outbox::push(std::string_view message, Keep keep) {
    const std::size_t need = head_bytes + message.size();
    if (need > capacity_ || message.size() >= spare_bit) return {Code::no_space, "message is longer than the outbox"};
    while (used_ + need > capacity_) {
        if (drop_oldest(true)) continue;
        if (keep == Keep::always && drop_oldest(false)) continue;
        dropped_++;
        return {Code::no_space, "the outbox is full of what matters more"};
    }
    const std::size_t head = message.size() | (keep == Keep::always ? 0 : spare_bit);
    buffer_[used_] = static_cast<char>(head >> 8);
    buffer_[used_ + 1] = static_cast<char>(head & 0xff);
    if (!message.empty()) std::memcpy(buffer_.get() + used_ + head_bytes, message.data(), message.size());
    used_ += need;
    count_++;
    return {};
}

bool Outbox::drop_oldest(bool spare_only) {
    for (std::size_t at = 0; at < used_; at += size_at(at)) {
        if (spare_only && (head_at(at) & spare_bit) == 0) continue;
        erase(at);
        dropped_++;
        return true;
    }
    return false;
}

void Outbox::erase(std::size_t at) {
    const std::size_t size = size_at(at);
    used_ -= size;
    std::memmove(buffer_.get() + at, buffer_.get() + at + size, used_ - at);
    count_--;
}

std::string_view Outbox::front() const {
    if (empty()) return {};
    return {buffer_.get() + head_bytes, size_at(0) - head_bytes};
}

void Outbox::pop() {
    if (!empty()) erase(0);
}

}  // namespace fleet
