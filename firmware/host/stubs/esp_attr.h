// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

// Memory that a reset other than power-on leaves as it is.
#define __NOINIT_ATTR
