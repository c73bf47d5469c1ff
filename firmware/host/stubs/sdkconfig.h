// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

#include "fleet_stub_config.h"
