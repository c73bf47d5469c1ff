// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" uint32_t esp_random(void);
extern "C" void esp_fill_random(void *buf, size_t len);
