// SPDX-License-Identifier: Apache-2.0
// The Updater on slot files, with the rules of esp_ota_ops.
#pragma once

#include "boot/bootloader.hpp"
#include "fleet/ports.hpp"
#include "ports/file_io.hpp"

#include <mutex>

namespace fleet::host {

struct SlotSettings {
    std::string state_dir;
    std::uint16_t chip_id = 0;
    std::uint32_t slot_size = 0;
    std::uint32_t secure_version = 0;  // of the fuses: older images are refused
};

class SlotUpdater final : public Updater {
public:
    SlotUpdater(SlotSettings settings, const Booted &booted);

    SlotInfo running() const override;
    Result<SlotInfo> other() const override;
    Status begin(std::uint32_t image_size, std::uint32_t resume_from) override;
    Status write(Bytes chunk) override;
    Status finish() override;
    void abort() override;
    Status read_back(std::uint32_t offset, MutableBytes into) override;
    Status boot_other() override;
    Status mark_valid() override;
    Status mark_invalid() override;

private:
    int other_slot() const { return 1 - slot_; }
    Status open_other(std::uint32_t resume_from);
    Result<EspImage> check_other() const;
    Status save(const OtaData &next);

    SlotSettings settings_;
    int slot_;
    EspImage image_;
    mutable std::mutex mutex_;  // the worker writes while the executor asks for states
    OtaData data_;
    Descriptor file_;
    std::uint32_t size_ = 0, written_ = 0;
};

}  // namespace fleet::host
