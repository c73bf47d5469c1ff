// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF espressif/network_provisioning 1.2. See README.md.
#pragma once

#include "network_provisioning/manager.h"

extern "C" const network_prov_scheme_t network_prov_scheme_ble;
extern "C" void network_prov_scheme_ble_event_cb_free_btdm(void *user_data, network_prov_cb_event_t event,
                                                           void *event_data);
