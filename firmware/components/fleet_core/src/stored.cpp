// SPDX-License-Identifier: Apache-2.0
#include "fleet/stored.hpp"

#include <utility>

namespace fleet {

std::int64_t stored_int(KvStore &store, std::string_view key, std::int64_t fallback) {
    const Result<std::int64_t> n = store.get_int(key);
    return n.ok() ? n.value() : fallback;
}

bool stored_text(KvStore &store, std::string_view key, std::string &text) {
    Result<std::string> found = store.get(key);
    text.swap(found.value());
    return found.ok();
}

void erase_all(KvStore &store, const char *const *keys) {
    for (; *keys; keys++)
        (void)store.erase(*keys);
    (void)store.commit();
}

void put_int(KvStore &store, std::string_view key, std::int64_t value) {
    (void)store.set_int(key, value);
    (void)store.commit();
}

void put(KvStore &store, std::string_view key, std::string_view value) {
    (void)store.set(key, value);
    (void)store.commit();
}

}  // namespace fleet
