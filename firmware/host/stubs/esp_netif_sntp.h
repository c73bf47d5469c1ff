// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf ef451cab (2023). See README.md.
#pragma once

#include "esp_err.h"
#include "esp_netif.h"

#include <sys/time.h>

typedef void (*esp_sntp_time_cb_t)(struct timeval *tv);

typedef struct {
    bool smooth_sync;
    bool server_from_dhcp;
    bool wait_for_sync;
    bool start;
    esp_sntp_time_cb_t sync_cb;
    bool renew_servers_after_new_IP;
    ip_event_t ip_event_to_renew;
    size_t index_of_first_server;
    size_t num_of_servers;
    const char *servers[CONFIG_LWIP_SNTP_MAX_SERVERS];
} esp_sntp_config_t;

extern "C" esp_err_t esp_netif_sntp_init(const esp_sntp_config_t *config);
extern "C" void esp_netif_sntp_deinit(void);
