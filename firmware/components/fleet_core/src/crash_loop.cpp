// SPDX-License-Identifier: Apache-2.0
#include "fleet/crash_loop.hpp"

#include "fleet/later.hpp"
#include "fleet/stored.hpp"

namespace fleet {
namespace {

std::int64_t counted(KvStore &store, const char *key) {
    const std::int64_t n = stored_int(store, key, 0);
    return n > 0 ? n : 0;
}

// A brown-out is the supply's: without its tools a board would do no better.
bool is_crash(ResetReason reason) {
    switch (reason) {
        case ResetReason::panic:
        case ResetReason::watchdog:
        case ResetReason::other: return true;
        default: return false;
    }
}

void forget(void *store) {
    put_int(*static_cast<KvStore *>(store), "crashes", 0);
}

}  // namespace

void CrashLoop::begin(const Machine &machine) {
    KvStore &store = *machine.store;
    boots_ = counted(store, "boots") + 1;
    // A restart on purpose is no sign of health, and none of a crash: it keeps the count.
    crashes_ = counted(store, "crashes") + is_crash(machine.system->reset_reason());
    (void)store.set_int("boots", boots_);
    put_int(store, "crashes", crashes_);
    if (crashes_ > 0) post_after(machine, stable_ms, {forget, &store});
}

}  // namespace fleet
