// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

// A dump appears by a crash and goes by erase, so it is looked for once: the look
// reads and sums all of it.
class FlashCoreDump final : public CoreDump {
public:
    bool present() const override;
    std::uint32_t size() const override;
    Status read(std::uint32_t offset, MutableBytes into) const override;
    std::string summary() const override;
    Status erase() override;

private:
    enum class Known : std::uint8_t { no, absent, present };
    mutable Known known_ = Known::no;
};

}  // namespace fleet::esp
