// SPDX-License-Identifier: Apache-2.0
// Settings as the core reads them: what is missing or unreadable is nothing.
#pragma once

#include "fleet/ports.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

std::int64_t stored_int(KvStore &store, std::string_view key, std::int64_t fallback);
// stored_text is false, and text empty, without one.
bool stored_text(KvStore &store, std::string_view key, std::string &text);

// erase_all erases keys, ended by a null, and commits.
void erase_all(KvStore &store, const char *const *keys);

// put_int and put store and commit; the core goes on if that fails.
void put_int(KvStore &store, std::string_view key, std::int64_t value);
void put(KvStore &store, std::string_view key, std::string_view value);

}  // namespace fleet
