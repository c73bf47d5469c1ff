// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// EspClock counts by esp_timer and knows the date after SNTP or the boot poll
// has set it. The system's clock holds UTC.
class EspClock final : public Clock {
public:
    EspClock();

    // remember sets the clock to the latest date that is certain from before this start, and
    // keeps a later one in the store, once a day at most. The date is not known by that, but
    // what had expired then has expired.
    void remember(KvStore &store, Executor &executor);
    static constexpr const char *key = "date";  // in the store

    // start_sntp asks the server for the date, again and again. Call it once,
    // after esp_netif_init; "" leaves the date to the boot poll.
    Status start_sntp(const char *server);

    std::int64_t mono_us() const override;
    std::int64_t unix_ms() const override;
    bool synced() const override;
    void set_unix_ms(std::int64_t ms, std::int32_t zone_minutes) override;

private:
    void keep(KvStore &store, Executor &executor);

    std::int64_t kept_ = 0;  // Unix seconds
};

// date_is_known is synced of the one system clock, for callbacks without context.
bool date_is_known();
// earliest_date_is_known: the clock stands at a date that has passed, if not at that of today.
bool earliest_date_is_known();
// confirm_date is for a server that has just shown a certificate which is good today. The
// date then is certain if it came by the poll: whoever has spoilt the clock cannot show one.
void confirm_date();

}  // namespace fleet::esp
