// SPDX-License-Identifier: Apache-2.0
#include "fleet/image_check.hpp"

namespace fleet {

void ImageCheck::update(Bytes bytes) {
    for (std::size_t i = 0; i < bytes.size && part_ != Part::bad && part_ != Part::after; i++)
        byte(bytes.data[i]);
}

void ImageCheck::byte(std::uint8_t b) {
    if (part_ != Part::hash && sum_) sum_->update({&b, 1});
    at_++;
    switch (part_) {
        case Part::header: return header(b);
        case Part::segment: return segment(b);
        case Part::data:
            checksum_ ^= b;
            if (--left_ == 0) next_segment();
            return;
        case Part::padding: return padding(b);
        case Part::hash:
            hash_[filled_++] = b;
            if (filled_ == hash_.size()) part_ = Part::after;
            return;
        default: return;
    }
}

void ImageCheck::header(std::uint8_t b) {
    field_[filled_++] = b;
    if (filled_ < 24) return;
    segments_ = field_[1];
    hash_appended_ = field_[23] == 1;
    part_ = Part::segment;
    filled_ = 0;
    if (field_[0] == 0xE9 && segments_ >= 1 && segments_ <= 16 && field_[23] <= 1) return;
    part_ = Part::bad;
    why_ = "not an app image";
}

void ImageCheck::segment(std::uint8_t b) {
    field_[filled_++] = b;
    if (filled_ < 8) return;
    filled_ = 0;
    left_ = field_[4] | std::uint32_t{field_[5]} << 8 | std::uint32_t{field_[6]} << 16 | std::uint32_t{field_[7]} << 24;
    part_ = Part::data;
    if (left_ == 0) next_segment();
}

void ImageCheck::next_segment() {
    part_ = --segments_ == 0 ? Part::padding : Part::segment;
}

// The checksum is the last byte of a block of 16.
void ImageCheck::padding(std::uint8_t b) {
    if (at_ % 16 != 0) return;
    end_ = at_ + (hash_appended_ ? 32 : 0);
    part_ = hash_appended_ ? Part::hash : Part::after;
    if (b == checksum_) return;
    part_ = Part::bad;
    why_ = "the image's checksum is wrong";
}

Status ImageCheck::finish() {
    if (part_ != Part::after) return {Code::corrupt, why_};
    if (!hash_appended_) return {};
    if (!sum_) return {Code::no_memory, "no memory to check the image's hash"};
    return sum_->finish() == hash_ ? Status{} : Status{Code::corrupt, "the image's hash is wrong"};
}

}  // namespace fleet
