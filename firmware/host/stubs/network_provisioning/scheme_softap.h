// SPDX-License-Identifier: Apache-2.0
// Stub, compared with the source in espressif/idf-extra-components b67c9fb8 (1.x). See README.md.
#pragma once

#include "network_provisioning/manager.h"

extern "C" const network_prov_scheme_t network_prov_scheme_softap;
extern "C" void network_prov_scheme_softap_set_httpd_handle(void *handle);  // of an httpd_handle_t
