// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// EspClock counts by esp_timer and knows the date after SNTP or the boot poll
// has set it. The system's clock holds UTC.
class EspClock final : public Clock {
public:
    EspClock();

    // start_sntp asks the server for the date, again and again. Call it once,
    // after esp_netif_init; "" leaves the date to the boot poll.
    Status start_sntp(const char *server);

    std::int64_t mono_us() const override;
    std::int64_t unix_ms() const override;
    bool synced() const override;
    void set_unix_ms(std::int64_t ms, std::int32_t zone_minutes) override;
};

// date_is_known is synced of the one system clock, for callbacks without context.
bool date_is_known();

}  // namespace fleet::esp
