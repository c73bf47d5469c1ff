// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

namespace fleet::esp {

class FlashCoreDump final : public CoreDump {
public:
    bool present() const override;
    std::uint32_t size() const override;
    Status read(std::uint32_t offset, MutableBytes into) const override;
    std::string summary() const override;
    Status erase() override;
};

}  // namespace fleet::esp
