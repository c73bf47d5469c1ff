// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "esp_event.h"

#include <stdbool.h>

typedef struct esp_netif_obj esp_netif_t;

typedef struct {
    uint32_t addr;
} esp_ip4_addr_t;

#define ESP_IPADDR_TYPE_V4 0U
typedef struct {
    union {
        uint32_t ip6[5];
        esp_ip4_addr_t ip4;
    } u_addr;
    uint8_t type;
} esp_ip_addr_t;
typedef struct {
    esp_ip_addr_t ip;
} esp_netif_dns_info_t;
typedef enum { ESP_NETIF_DNS_MAIN, ESP_NETIF_DNS_BACKUP } esp_netif_dns_type_t;
typedef enum { ESP_NETIF_OP_START, ESP_NETIF_OP_SET, ESP_NETIF_OP_GET } esp_netif_dhcp_option_mode_t;
typedef enum { ESP_NETIF_DOMAIN_NAME_SERVER = 6 } esp_netif_dhcp_option_id_t;

typedef struct {
    esp_ip4_addr_t ip;
    esp_ip4_addr_t netmask;
    esp_ip4_addr_t gw;
} esp_netif_ip_info_t;

typedef struct {
    esp_netif_t *esp_netif;
    esp_netif_ip_info_t ip_info;
    bool ip_changed;
} ip_event_got_ip_t;

typedef enum { IP_EVENT_STA_GOT_IP, IP_EVENT_STA_LOST_IP } ip_event_t;
ESP_EVENT_DECLARE_BASE(IP_EVENT);

extern "C" {
esp_err_t esp_netif_init(void);
esp_netif_t *esp_netif_create_default_wifi_sta(void);
esp_netif_t *esp_netif_create_default_wifi_ap(void);
esp_err_t esp_netif_get_ip_info(esp_netif_t *netif, esp_netif_ip_info_t *info);
esp_err_t esp_netif_set_dns_info(esp_netif_t *netif, esp_netif_dns_type_t type, esp_netif_dns_info_t *dns);
esp_err_t esp_netif_dhcps_option(esp_netif_t *netif, esp_netif_dhcp_option_mode_t mode, esp_netif_dhcp_option_id_t id,
                                 void *value, uint32_t size);
esp_err_t esp_netif_dhcps_start(esp_netif_t *netif);
esp_err_t esp_netif_dhcps_stop(esp_netif_t *netif);
esp_err_t esp_netif_set_hostname(esp_netif_t *netif, const char *name);
char *esp_ip4addr_ntoa(const esp_ip4_addr_t *addr, char *buffer, int size);
}
