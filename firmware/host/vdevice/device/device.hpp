// SPDX-License-Identifier: Apache-2.0
// One virtual device: its ports, the unit that runs on them, its tools.
#pragma once

#include "boot/bootloader.hpp"
#include "device/behaviour.hpp"
#include "device/board.hpp"
#include "device/faults.hpp"
#include "device/log.hpp"
#include "device/options.hpp"
#include "fleet/tools/toolkit.hpp"
#include "fleet/unit.hpp"
#include "ports/canvas_display.hpp"
#include "ports/curl_http.hpp"
#include "ports/file_core_dump.hpp"
#include "ports/file_store.hpp"
#include "ports/fixed_parts.hpp"
#include "ports/key_identity.hpp"
#include "ports/mosquitto_transport.hpp"
#include "ports/openssl_crypto.hpp"
#include "ports/posix_clock.hpp"
#include "ports/posix_system.hpp"
#include "ports/slot_updater.hpp"
#include "ports/synthetic_camera.hpp"
#include "ports/thread_executor.hpp"

#include "fleet/camera_tool.hpp"

#include <string>
#include <vector>

namespace fleet::host {

class Device {
public:
    // All three outlive the device.
    Device(const Options &options, const Board &board, Faults &faults, const Booted &booted);

    void run();   // until stop
    void stop();  // from any thread; says goodbye to the broker

private:
    ScreenSettings screen() const;
    SystemSettings system(const Booted &booted) const;
    UnitOptions unit_options() const;
    Machine machine();
    void begin();
    void log_failed_requests();
    void log_broker();
    void behave();
    void leak(std::int64_t bytes);
    void misbehave();
    void drop_again(std::uint32_t ms);

    const Options &options_;
    const Board &board_;
    Faults &faults_;
    Behaviour behaviour_;
    PosixClock clock_;
    Log log_;
    ThreadExecutor executor_;
    MosquittoTransport transport_;
    CurlHttp curl_;
    FaultyHttp http_;
    FileStore store_;
    SlotUpdater slots_;
    FaultyUpdater updater_;
    PosixSystem system_;
    FixedNetwork network_;
    KeyIdentity identity_;
    FileCoreDump core_dump_;
    OpensslCrypto crypto_;
    CanvasDisplay display_;
    StoredSpeaker speaker_;
    StoredLed led_;
    SyntheticCamera camera_;
    FixedBattery battery_;
    Machine machine_;
    Unit unit_;
    Hook<void(TransportState, Status)> unit_on_state_;
    Toolkit kit_;
    CameraTool camera_tool_;
    std::vector<std::string> leaked_;
};

}  // namespace fleet::host
