// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF espressif/network_provisioning 1.2. See README.md.
#pragma once

#include "network_provisioning/manager.h"

extern "C" const network_prov_scheme_t network_prov_scheme_softap;
