// SPDX-License-Identifier: Apache-2.0
// A virtual device: the firmware's core and tools on Linux. See --help.
#include "boot/slot_program.hpp"
#include "device/device.hpp"
#include "device/flash.hpp"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>

namespace {

using namespace fleet;
using namespace fleet::host;

int fail(const std::string &what, const Status &why) {
    std::fprintf(stderr, "vdevice: %s: %s\n", what.c_str(), why.why);
    return 1;
}

// Signals come to one thread that waits for them; all others block them.
class StopSignals {
public:
    StopSignals() {
        sigemptyset(&set_);
        sigaddset(&set_, SIGINT);
        sigaddset(&set_, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &set_, nullptr);
        std::signal(SIGPIPE, SIG_IGN);
    }
    ~StopSignals() {
        over_ = true;
        if (thread_.joinable()) thread_.join();
    }
    void watch(Device &device) {
        thread_ = std::thread([this, &device] {
            const timespec poll_interval{0, 100'000'000};
            while (!over_) {
                if (sigtimedwait(&set_, nullptr, &poll_interval) > 0) device.stop();
            }
        });
    }

private:
    sigset_t set_{};
    std::atomic<bool> over_{false};
    std::thread thread_;
};

// A chip takes its time to start; without it a crash loop would be a busy loop.
void pause_after_crash() {
    if (reset_reason_from_environment() == ResetReason::panic)
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

// start_slot chooses the slot and, if its image carries a program and that is
// asked for, becomes that program.
Result<Booted> start_slot(const Options &options, std::uint16_t chip_id) {
    if (started_from_slot()) return booted(options.state_dir, chip_id);
    pause_after_crash();
    Result<Booted> chosen = boot(options.state_dir, chip_id);
    if (!chosen.ok() || !options.run_elf || chosen.value().image.elf_size == 0) return chosen;
    const Status failed = run_slot_program(options.state_dir, chosen.value());
    const bool on_trial = chosen.value().data.states[chosen.value().slot] == SlotState::pending_verify;
    if (on_trial) reset(ResetReason::panic);  // which takes the other slot
    return failed;
}

int run(const Options &options) {
    Board board;
    Status status = load_board(options.board, board);
    if (!status.ok()) return fail(options.board, status);
    Result<Faults> faults = Faults::parse(options.faults, options.state_dir);
    if (!faults.ok()) return fail("--fault", faults.status());
    const Result<Descriptor> lock = prepare_flash(options, board);
    if (!lock.ok()) return fail(options.state_dir, lock.status());
    write_core_dump_on_crash(options.state_dir + "/coredump.bin");
    arm_kill(faults.value());
    const Result<Booted> slot = start_slot(options, board.chip_info.image_id);
    if (!slot.ok()) return fail("no slot boots", slot.status());

    StopSignals signals;
    Device device(options, board, faults.value(), slot.value());
    signals.watch(device);
    device.run();
    return 0;
}

}  // namespace

#ifndef VDEVICE_EDITION
#define VDEVICE_EDITION "stock"
#endif

int main(int argc, char **argv) {
    keep_arguments(argc, argv);
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--help") == 0) return std::fputs(usage, stdout) < 0;
    }
    Result<Options> options = parse_options(argc, argv);
    if (!options.ok()) {
        std::fprintf(stderr, "vdevice: %s\n\n%s", options.status().why, usage);
        return 2;
    }
    options.value().edition = VDEVICE_EDITION;
    return run(options.value());
}
