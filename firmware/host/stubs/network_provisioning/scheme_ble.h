// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "network_provisioning/manager.h"

extern "C" const network_prov_scheme_t network_prov_scheme_ble;
extern "C" void network_prov_scheme_ble_event_cb_free_btdm(void *user_data, network_prov_cb_event_t event,
                                                           void *event_data);
