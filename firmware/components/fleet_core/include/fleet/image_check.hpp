// SPDX-License-Identifier: Apache-2.0
// Checks a whole app image as the bootloader would: segments, checksum, hash.
// ESP-IDF does this itself; this is for machines that have no bootloader.
#pragma once

#include "fleet/crypto.hpp"
#include "fleet/span.hpp"
#include "fleet/status.hpp"

#include <array>
#include <cstdint>
#include <memory>

namespace fleet {

class ImageCheck {
public:
    explicit ImageCheck(Crypto &crypto) : sum_(crypto.sha256()) {}

    void update(Bytes bytes);
    // finish is ok for a sound image. Bytes after it (a signature, padding of
    // the slot) are not looked at.
    Status finish();
    std::uint32_t size() const { return end_; }  // of the image itself, once finish was ok

private:
    enum class Part : std::uint8_t { header, segment, data, padding, hash, after, bad };

    void byte(std::uint8_t b);
    void header(std::uint8_t b);
    void segment(std::uint8_t b);
    void next_segment();
    void padding(std::uint8_t b);

    std::unique_ptr<Sha256> sum_;
    std::array<std::uint8_t, 24> field_{};
    std::array<std::uint8_t, 32> hash_{};
    std::uint32_t at_ = 0;      // bytes seen
    std::uint32_t filled_ = 0;  // of field_ or hash_
    std::uint32_t left_ = 0;    // of the segment's data
    std::uint32_t end_ = 0;
    std::uint8_t segments_ = 0;
    std::uint8_t checksum_ = 0xEF;
    bool hash_appended_ = false;
    Part part_ = Part::header;
    const char *why_ = "the image is cut short";
};

}  // namespace fleet
