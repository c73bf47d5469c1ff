// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

class EspSystem final : public System {
public:
    void restart() override;
    AppInfo app() const override;
    ResetReason reset_reason() const override;
    std::uint32_t heap_free() const override;
    std::uint32_t heap_min() const override;
    std::uint32_t heap_largest() const override;
    ChipInfo chip() const override;
    std::string mac() const override;
    void random(MutableBytes into) const override;
    std::string partition_table_json() const override;
    void feed_watchdog() override;
    Result<int> temperature() const override;
};

}  // namespace fleet::esp
