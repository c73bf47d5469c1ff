// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/idf-extra-components 204bd109, its source with 3bd24ffd (1.x). See README.md.
#pragma once

#include "esp_event.h"
#include "esp_wifi.h"

#if !CONFIG_ESP_PROTOCOMM_SUPPORT_SECURITY_VERSION_2 || !CONFIG_NETWORK_PROV_NETWORK_TYPE_WIFI
#error "sdkconfig.defaults must set these"
#endif

ESP_EVENT_DECLARE_BASE(NETWORK_PROV_EVENT);

typedef enum {
    NETWORK_PROV_INIT,
    NETWORK_PROV_START,
    NETWORK_PROV_WIFI_CRED_RECV,
    NETWORK_PROV_WIFI_CRED_FAIL,
    NETWORK_PROV_WIFI_CRED_SUCCESS,
    NETWORK_PROV_END,
    NETWORK_PROV_DEINIT,
} network_prov_cb_event_t;

typedef void (*network_prov_cb_func_t)(void *user_data, network_prov_cb_event_t event, void *event_data);

typedef struct {
    network_prov_cb_func_t event_cb;
    void *user_data;
} network_prov_event_handler_t;

typedef struct network_prov_scheme {
    wifi_mode_t wifi_mode;
} network_prov_scheme_t;

typedef struct {
    network_prov_scheme_t scheme;
    network_prov_event_handler_t scheme_event_handler;
    network_prov_event_handler_t app_event_handler;
} network_prov_mgr_config_t;

typedef enum network_prov_security { NETWORK_PROV_SECURITY_2 = 2 } network_prov_security_t;

typedef struct protocomm_security2_params {
    const char *salt;
    uint16_t salt_len;
    const char *verifier;
    uint16_t verifier_len;
} network_prov_security2_params_t;

extern "C" {
esp_err_t network_prov_mgr_init(network_prov_mgr_config_t config);
void network_prov_mgr_deinit(void);
esp_err_t network_prov_mgr_is_wifi_provisioned(bool *provisioned);
esp_err_t network_prov_mgr_start_provisioning(network_prov_security_t security, const void *params,
                                              const char *service_name, const char *service_key);
void network_prov_mgr_stop_provisioning(void);
esp_err_t network_prov_mgr_reset_wifi_sm_state_on_failure(void);
esp_err_t network_prov_mgr_configure_wifi_sta(wifi_config_t *config);
}
