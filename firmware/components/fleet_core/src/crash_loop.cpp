// SPDX-License-Identifier: Apache-2.0
#include "fleet/crash_loop.hpp"

namespace fleet {
namespace {

std::int64_t stored(KvStore &store, const char *key) {
    const Result<std::int64_t> n = store.get_int(key);
    return n.ok() && n.value() > 0 ? n.value() : 0;
}

bool is_crash(ResetReason reason) {
    switch (reason) {
        case ResetReason::panic:
        case ResetReason::watchdog:
        case ResetReason::brownout:
        case ResetReason::other: return true;
        default: return false;
    }
}

void forget(KvStore &store) {
    (void)store.set_int("crashes", 0);
    (void)store.commit();
}

}  // namespace

void CrashLoop::begin(const Machine &machine) {
    KvStore &store = *machine.store;
    boots_ = stored(store, "boots") + 1;
    // A restart on purpose is no sign of health, and none of a crash: it keeps the count.
    crashes_ = stored(store, "crashes") + is_crash(machine.system->reset_reason());
    (void)store.set_int("boots", boots_);
    (void)store.set_int("crashes", crashes_);
    (void)store.commit();
    if (crashes_ > 0) machine.executor->post_after(kStableMs, [&store] { forget(store); });
}

}  // namespace fleet
