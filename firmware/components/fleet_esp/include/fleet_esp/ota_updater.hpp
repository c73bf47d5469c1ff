// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include "esp_ota_ops.h"

namespace fleet::esp {

// OtaUpdater writes through esp_ota_*, erasing sector by sector as it goes.
class OtaUpdater final : public Updater {
public:
    SlotInfo running() const override;
    Result<SlotInfo> other() const override;
    // begin resumes only where a sector of flash begins: what stands behind the
    // offset in its sector may have been written before the interruption.
    Status begin(std::uint32_t image_size, std::uint32_t resume_from) override;
    Status write(Bytes chunk) override;
    Status finish() override;
    void abort() override;
    Status read_back(std::uint32_t offset, MutableBytes into) override;
    Status boot_other() override;
    Status mark_valid() override;
    Status mark_invalid() override;

private:
    bool open_ = false;
    esp_ota_handle_t handle_ = 0;
};

}  // namespace fleet::esp
