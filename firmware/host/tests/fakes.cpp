// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"

#include <cstdlib>

namespace fleet::test {

void FakeExecutor::run_for(std::int64_t ms) {
    const std::int64_t until = clock_.us + ms * 1000;
    while (!due_.empty() && due_.begin()->first <= until) {
        auto node = due_.extract(due_.begin());
        if (node.key() > clock_.us) clock_.us = node.key();
        node.mapped()();
    }
    clock_.us = until;
}

Result<std::int64_t> FakeStore::get_int(std::string_view key) {
    const auto found = values.find("i:" + std::string(key));
    if (found == values.end()) return Status{Code::not_found, "no such key"};
    return static_cast<std::int64_t>(std::strtoll(found->second.c_str(), nullptr, 10));
}

Result<std::string> FakeStore::get(std::string_view key) {
    const auto found = values.find("s:" + std::string(key));
    if (found == values.end()) return Status{Code::not_found, "no such key"};
    return found->second;
}

Status FakeStore::write(std::string_view key, std::string_view value) {
    if (full) return {Code::no_space, "the store is full"};
    if (key.size() > 17 || value.size() > 4000) return {Code::invalid, "NVS would refuse this"};
    if (powerless && powerless()) return {Code::io, "no power"};
    writes++;
    dirty = true;
    values[std::string(key)] = std::string(value);
    return {};
}

Status FakeStore::set_int(std::string_view key, std::int64_t value) {
    return write("i:" + std::string(key), std::to_string(value));
}

Status FakeStore::set(std::string_view key, std::string_view value) {
    return write("s:" + std::string(key), value);
}

Status FakeStore::erase(std::string_view key) {
    if (full) return {Code::io, "the store is broken"};
    if (powerless && powerless()) return {Code::io, "no power"};
    dirty = true;
    values.erase("s:" + std::string(key));
    values.erase("i:" + std::string(key));
    return {};
}

Status FakeStore::commit() {
    if (!full) dirty = false;
    return full ? Status{Code::io, "the store is broken"} : Status{};
}

}  // namespace fleet::test
