// SPDX-License-Identifier: Apache-2.0
// Stub, compared with the source in espressif/idf-extra-components b67c9fb8 (1.x). See README.md.
#pragma once

#include "network_provisioning/manager.h"

extern "C" const network_prov_scheme_t network_prov_scheme_softap;
