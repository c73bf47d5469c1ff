// SPDX-License-Identifier: Apache-2.0
#include "fleet/captive_dns.hpp"

#include <cstring>

namespace fleet {
namespace {

constexpr std::size_t header_size = 12;
constexpr std::size_t record_size = 16;
constexpr std::size_t max_name = 255;
constexpr unsigned type_a = 1;
constexpr unsigned class_in = 1;
constexpr unsigned ttl_seconds = 10;  // short: the names are right again soon after

unsigned u16(const std::uint8_t *p) {
    return static_cast<unsigned>(p[0]) << 8 | p[1];
}

// question_end gives the offset behind the one question, or 0. A name in a question is
// not compressed.
std::size_t question_end(Bytes query) {
    std::size_t at = header_size;
    while (at < query.size && query.data[at] != 0) {
        if (query.data[at] > 63) return 0;
        at += 1u + query.data[at];
        if (at - header_size > max_name) return 0;
    }
    at += 1 + 4;  // the root, type and class
    return at <= query.size ? at : 0;
}

}  // namespace

std::size_t answer_dns(Bytes query, const std::array<std::uint8_t, 4> &address, MutableBytes out) {
    if (query.size < header_size || query.size > max_dns_message) return 0;
    const bool is_query = (query.data[2] & 0xf8) == 0;  // no answer, and the standard operation
    if (!is_query || u16(query.data + 4) != 1) return 0;
    const std::size_t end = question_end(query);
    if (end == 0 || end + record_size > out.size) return 0;
    const bool wants_address = u16(query.data + end - 4) == type_a && u16(query.data + end - 2) == class_in;
    std::memcpy(out.data, query.data, end);
    out.data[2] = static_cast<std::uint8_t>(0x84 | (query.data[2] & 0x01));  // an authority's answer
    out.data[3] = 0;
    std::memset(out.data + 6, 0, header_size - 6);  // what the query carries behind its question is left out
    if (!wants_address) return end;                 // there is the name, but no such record
    out.data[7] = 1;
    const std::uint8_t record[record_size] = {0xc0,       header_size, 0,          type_a,      0, class_in,
                                              0,          0,           0,          ttl_seconds, 0, 4,
                                              address[0], address[1],  address[2], address[3]};
    std::memcpy(out.data + end, record, record_size);
    return end + record_size;
}

}  // namespace fleet
