// SPDX-License-Identifier: Apache-2.0
// The System on Linux: a restart is execv of the own program, which then runs
// the bootloader again.
#pragma once

#include "fleet/ports.hpp"

#include <atomic>

namespace fleet::host {

struct SystemSettings {
    AppInfo app;
    ChipInfo chip;
    std::string mac;
    std::string partitions;  // JSON, for the boot poll
    ResetReason reset_reason = ResetReason::power_on;
    std::uint32_t heap_size = 0;  // what the heap counts as free when nothing is taken
};

class PosixSystem final : public System {
public:
    explicit PosixSystem(SystemSettings settings);
    void restart() override;
    const AppInfo &app() const override { return settings_.app; }
    ResetReason reset_reason() const override { return settings_.reset_reason; }
    std::uint32_t heap_free() const override;
    std::uint32_t heap_min() const override;
    std::uint32_t heap_largest() const override { return heap_free(); }
    ChipInfo chip() const override { return settings_.chip; }
    std::string mac() const override { return settings_.mac; }
    void random(MutableBytes into) const override;
    std::string partition_table_json() const override { return settings_.partitions; }
    void feed_watchdog() override {}
    Result<int> temperature() const override;

    std::function<void()> before_restart;  // say goodbye to files and sockets

private:
    SystemSettings settings_;
    std::int64_t base_;  // bytes in use at the start: the program itself
    mutable std::atomic<std::uint32_t> least_;
};

// Reset reasons pass execv by the environment.
ResetReason reset_reason_from_environment();
void keep_arguments(int argc, char **argv);
// run_in_place puts another program in place of this one, which notices by
// bootloader_variable what a reset starts. It returns when that fails.
constexpr char bootloader_variable[] = "VDEVICE_BOOTLOADER";
void run_in_place(int program_fd);
// reset starts the program again, in the same process; safe in a signal handler.
[[noreturn]] void reset(ResetReason reason);

}  // namespace fleet::host
