// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/status.hpp"

#include "esp_err.h"

namespace fleet::esp {

// status_of keeps the sentence, which names what was being done, and gives it
// the code that fits err.
Status status_of(esp_err_t err, const char *sentence);

}  // namespace fleet::esp
