// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"

#include "nvs.h"

namespace fleet::esp {

// NvsStore keeps settings in one namespace of NVS. Text is kept as blobs, which
// have no limit of 4000 bytes and may hold any byte.
class NvsStore final : public KvStore {
public:
    // open makes the partition usable, by erasing it if its layout is of
    // another version of NVS or it has no free page.
    Status open(const char *name_space);

    Result<std::int64_t> get_int(std::string_view key) override;
    Result<std::string> get(std::string_view key) override;
    Status set_int(std::string_view key, std::int64_t value) override;
    Status set(std::string_view key, std::string_view value) override;
    Status erase(std::string_view key) override;
    Status commit() override;

private:
    nvs_handle_t handle_ = 0;
};

}  // namespace fleet::esp
