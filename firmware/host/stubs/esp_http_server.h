// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 10212290 (2026, master after 6.0), the fields that are used. See README.md.
#pragma once

#include "esp_err.h"
#include "freertos/FreeRTOS.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CONFIG_HTTPD_MAX_URI_LEN 512

#define HTTPD_SOCK_ERR_FAIL -1
#define HTTPD_SOCK_ERR_INVALID -2
#define HTTPD_SOCK_ERR_TIMEOUT -3

typedef void *httpd_handle_t;
enum http_method { HTTP_DELETE, HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT };
typedef enum http_method httpd_method_t;

typedef void (*httpd_free_ctx_fn_t)(void *ctx);
typedef esp_err_t (*httpd_open_func_t)(httpd_handle_t server, int socket);

typedef struct {
    size_t stack_size;
    uint16_t server_port;
    uint16_t max_open_sockets;
    uint16_t max_uri_handlers;
    bool lru_purge_enable;
    uint16_t recv_wait_timeout;
    void *global_user_ctx;
    httpd_free_ctx_fn_t global_user_ctx_free_fn;
    httpd_open_func_t open_fn;
} httpd_config_t;
#define HTTPD_DEFAULT_CONFIG() {4096, 80, 7, 8, false, 5, NULL, NULL, NULL}

typedef struct {
    httpd_handle_t handle;
    int method;
    const char uri[CONFIG_HTTPD_MAX_URI_LEN + 1];
    size_t content_len;
    void *aux;
    void *user_ctx;
} httpd_req_t;

typedef struct {
    const char *uri;
    httpd_method_t method;
    esp_err_t (*handler)(httpd_req_t *request);
    void *user_ctx;
} httpd_uri_t;

typedef enum {
    HTTPD_400_BAD_REQUEST = 3,
    HTTPD_404_NOT_FOUND = 6,
    HTTPD_405_METHOD_NOT_ALLOWED = 7,
} httpd_err_code_t;
typedef esp_err_t (*httpd_err_handler_func_t)(httpd_req_t *request, httpd_err_code_t error);
typedef int (*httpd_recv_func_t)(httpd_handle_t server, int socket, char *buffer, size_t size, int flags);

extern "C" {
esp_err_t httpd_start(httpd_handle_t *server, const httpd_config_t *config);
esp_err_t httpd_stop(httpd_handle_t server);
esp_err_t httpd_register_uri_handler(httpd_handle_t server, const httpd_uri_t *handler);
esp_err_t httpd_register_err_handler(httpd_handle_t server, httpd_err_code_t error, httpd_err_handler_func_t handler);
void *httpd_get_global_user_ctx(httpd_handle_t server);
void *httpd_sess_get_transport_ctx(httpd_handle_t server, int socket);
void httpd_sess_set_transport_ctx(httpd_handle_t server, int socket, void *ctx, httpd_free_ctx_fn_t free_fn);
esp_err_t httpd_sess_set_recv_override(httpd_handle_t server, int socket, httpd_recv_func_t receive);
int httpd_req_recv(httpd_req_t *request, char *buffer, size_t size);
esp_err_t httpd_req_get_hdr_value_str(httpd_req_t *request, const char *field, char *value, size_t size);
esp_err_t httpd_resp_set_status(httpd_req_t *request, const char *status);
esp_err_t httpd_resp_set_type(httpd_req_t *request, const char *type);
esp_err_t httpd_resp_set_hdr(httpd_req_t *request, const char *field, const char *value);
esp_err_t httpd_resp_send(httpd_req_t *request, const char *body, ssize_t size);
}
