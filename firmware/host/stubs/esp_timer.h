// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

#include <stdint.h>

extern "C" int64_t esp_timer_get_time(void);
