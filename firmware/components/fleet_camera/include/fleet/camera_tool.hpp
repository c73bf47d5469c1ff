// SPDX-License-Identifier: Apache-2.0
// self.camera.take_photo: as stock devices have it, a photo and a question go to
// the address that the server gave, and its answer is the tool's.
#pragma once

#include "fleet/tools/toolkit.hpp"

#include <string>

namespace fleet {

// CameraTool outlives the unit.
class CameraTool {
public:
    static constexpr std::size_t max_url = 512;
    static constexpr std::size_t max_token = 1024;

    // add does nothing on a board without a camera.
    Status add(ToolRegistry &registry, Toolkit &kit);

private:
    static Status take_photo(void *self, Call &call);
    void read_vision(JsonView capabilities);

    Toolkit *kit_ = nullptr;
    // Of the last initialize that had it: it does not outlive a restart.
    std::string url_;
    std::string token_;
};

}  // namespace fleet
