// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/span.hpp"
#include "fleet/status.hpp"
#include "picture/canvas.hpp"

namespace fleet::host {

constexpr unsigned max_side = 4096;

Result<Canvas> decode_jpeg(Bytes file);

}  // namespace fleet::host
