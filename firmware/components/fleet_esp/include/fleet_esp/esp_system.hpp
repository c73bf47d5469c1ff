// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

class EspSystem final : public System {
public:
    EspSystem();
    void restart() override;
    const AppInfo &app() const override { return app_; }
    ResetReason reset_reason() const override;
    std::uint32_t heap_free() const override;
    std::uint32_t heap_min() const override;
    std::uint32_t heap_largest() const override;
    ChipInfo chip() const override;
    std::string mac() const override;
    void random(MutableBytes into) const override;
    std::string partition_table_json() const override;
    void feed_watchdog() override;
    void stacks(FunctionRef<void(std::string_view task, std::uint32_t never_used)> each) const override;
    Result<int> temperature() const override;

private:
    AppInfo app_;
};

}  // namespace fleet::esp
