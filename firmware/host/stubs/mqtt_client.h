// SPDX-License-Identifier: Apache-2.0
// Stub, compared with the header of esp-mqtt that 5.x brings; and with espressif/mqtt 1.1.0. See
// README.md.
#pragma once

#include "esp_event.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct esp_mqtt_client *esp_mqtt_client_handle_t;

typedef enum esp_mqtt_event_id_t {
    MQTT_EVENT_ANY = -1,
    MQTT_EVENT_ERROR = 0,
    MQTT_EVENT_CONNECTED,
    MQTT_EVENT_DISCONNECTED,
    MQTT_EVENT_SUBSCRIBED,
    MQTT_EVENT_UNSUBSCRIBED,
    MQTT_EVENT_PUBLISHED,
    MQTT_EVENT_DATA,
    MQTT_EVENT_BEFORE_CONNECT,
    MQTT_EVENT_DELETED,
    MQTT_USER_EVENT,
} esp_mqtt_event_id_t;

typedef enum esp_mqtt_connect_return_code_t {
    MQTT_CONNECTION_ACCEPTED = 0,
    MQTT_CONNECTION_REFUSE_PROTOCOL,
    MQTT_CONNECTION_REFUSE_ID_REJECTED,
    MQTT_CONNECTION_REFUSE_SERVER_UNAVAILABLE,
    MQTT_CONNECTION_REFUSE_BAD_USERNAME,
    MQTT_CONNECTION_REFUSE_NOT_AUTHORIZED,
} esp_mqtt_connect_return_code_t;

typedef enum esp_mqtt_error_type_t {
    MQTT_ERROR_TYPE_NONE = 0,
    MQTT_ERROR_TYPE_TCP_TRANSPORT,
    MQTT_ERROR_TYPE_CONNECTION_REFUSED,
    MQTT_ERROR_TYPE_SUBSCRIBE_FAILED,
} esp_mqtt_error_type_t;

typedef enum esp_mqtt_transport_t {
    MQTT_TRANSPORT_UNKNOWN = 0x0,
    MQTT_TRANSPORT_OVER_TCP,
    MQTT_TRANSPORT_OVER_SSL,
} esp_mqtt_transport_t;

typedef enum esp_mqtt_protocol_ver_t {
    MQTT_PROTOCOL_UNDEFINED = 0,
    MQTT_PROTOCOL_V_3_1,
    MQTT_PROTOCOL_V_3_1_1,
    MQTT_PROTOCOL_V_5,
} esp_mqtt_protocol_ver_t;

typedef struct esp_mqtt_error_codes {
    esp_err_t esp_tls_last_esp_err;
    int esp_tls_stack_err;
    int esp_tls_cert_verify_flags;
    esp_mqtt_error_type_t error_type;
    esp_mqtt_connect_return_code_t connect_return_code;
    int esp_transport_sock_errno;
} esp_mqtt_error_codes_t;

typedef struct esp_mqtt_event_t {
    esp_mqtt_event_id_t event_id;
    esp_mqtt_client_handle_t client;
    char *data;
    int data_len;
    int total_data_len;
    int current_data_offset;
    char *topic;
    int topic_len;
    int msg_id;
    int session_present;
    esp_mqtt_error_codes_t *error_handle;
    bool retain;
    int qos;
    bool dup;
} esp_mqtt_event_t;
typedef esp_mqtt_event_t *esp_mqtt_event_handle_t;

// The fields that are used; the real structure has more.
typedef struct esp_mqtt_client_config_t {
    struct broker_t {
        struct address_t {
            const char *uri;
            const char *hostname;
            esp_mqtt_transport_t transport;
            const char *path;
            uint32_t port;
        } address;
        struct verification_t {
            esp_err_t (*crt_bundle_attach)(void *conf);
            const char *certificate;
        } verification;
    } broker;
    struct credentials_t {
        const char *username;
        const char *client_id;
        struct authentication_t {
            const char *password;
        } authentication;
    } credentials;
    struct session_t {
        struct last_will_t {
            const char *topic;
            const char *msg;
            int msg_len;
            int qos;
            int retain;
        } last_will;
        bool disable_clean_session;
        int keepalive;
        esp_mqtt_protocol_ver_t protocol_ver;
    } session;
    struct network_t {
        int reconnect_timeout_ms;
        int timeout_ms;
        bool disable_auto_reconnect;
    } network;
    struct task_t {
        int priority;
        int stack_size;
    } task;
    struct buffer_t {
        int size;
        int out_size;
    } buffer;
    struct outbox_config_t {
        uint64_t limit;
    } outbox;
} esp_mqtt_client_config_t;

extern "C" {
esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *config);
esp_err_t esp_mqtt_client_register_event(esp_mqtt_client_handle_t client, esp_mqtt_event_id_t event,
                                         esp_event_handler_t handler, void *arg);
esp_err_t esp_mqtt_client_start(esp_mqtt_client_handle_t client);
esp_err_t esp_mqtt_client_stop(esp_mqtt_client_handle_t client);
esp_err_t esp_mqtt_client_destroy(esp_mqtt_client_handle_t client);
int esp_mqtt_client_publish(esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos,
                            int retain);
int esp_mqtt_client_enqueue(esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos,
                            int retain, bool store);
}
