// SPDX-License-Identifier: Apache-2.0
#include "fleet/request_ring.hpp"

#include <cstring>

namespace fleet {

std::uint64_t digest_request(std::string_view raw_payload) {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: not against malice, the server is trusted
    for (const char c : raw_payload)
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return hash;
}

const RequestRing::Entry *RequestRing::find(std::uint64_t digest) const {
    for (const Entry &e : entries_) {
        if (e.seen != Seen::never && e.digest == digest) return &e;
    }
    return nullptr;
}

Seen RequestRing::look(std::uint64_t digest, std::uint32_t now_s) const {
    const Entry *e = find(digest);
    if (!e || (e->seen == Seen::answered && now_s - e->started_s >= keep_s)) return Seen::never;
    return e->seen;
}

std::string_view RequestRing::reply(std::uint64_t digest) const {
    const Entry *e = find(digest);
    return e ? std::string_view(e->reply.data(), e->size) : std::string_view();
}

void RequestRing::start(std::uint64_t digest, std::uint32_t now_s) {
    // Again, long after: in its old place, or find would go on finding that one.
    const Entry *old = find(digest);
    Entry &e = old ? const_cast<Entry &>(*old) : entries_[next_];
    if (!old) next_ = (next_ + 1) % max_entries;
    e.started_s = now_s;
    e.digest = digest;
    e.seen = Seen::running;
    e.size = 0;
}

void RequestRing::answer(std::uint64_t digest, std::string_view reply) {
    Entry *e = const_cast<Entry *>(find(digest));
    if (!e) return;  // pushed out while it ran
    e->seen = Seen::answered;
    if (reply.size() > max_reply) return;
    std::memcpy(e->reply.data(), reply.data(), reply.size());
    e->size = static_cast<std::uint8_t>(reply.size());
}

}  // namespace fleet
