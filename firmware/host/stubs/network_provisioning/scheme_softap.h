// SPDX-License-Identifier: Apache-2.0
// Stub for espressif/network_provisioning 1.2, from its documented use; not compared with the header yet. See
// README.md.
#pragma once

#include "network_provisioning/manager.h"

extern "C" const network_prov_scheme_t network_prov_scheme_softap;
