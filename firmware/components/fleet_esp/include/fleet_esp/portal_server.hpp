// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/portal.hpp"
#include "fleet/ports.hpp"

#include "esp_http_server.h"
#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"

#include <functional>
#include <memory>

namespace fleet::esp {

// PortalServer serves the page on the device's own access point. Espressif's protocol
// uses the same server: two cannot share port 80, and both clients expect it there.
class PortalServer {
public:
    explicit PortalServer(Executor &executor) : executor_(executor) {}

    // start serves a page for this address, with what Portal's constructor describes.
    Status start(std::string_view address, std::string_view code, std::string_view fleet);
    // stop waits until the server's task has ended. Whoever else has handlers there
    // removes them before.
    void stop();
    // handle is for others who add their handlers; nullptr while stopped.
    httpd_handle_t *handle() { return server_ != nullptr ? &server_ : nullptr; }

    void set_networks(std::vector<std::string> networks);
    void set_notice(std::string_view notice);

    std::function<void(const PortalInput &)> on_input;  // on the executor

private:
    static esp_err_t on_request(httpd_req_t *request);
    static esp_err_t on_error(httpd_req_t *request, httpd_err_code_t error);
    esp_err_t serve(httpd_req_t *request);
    Status add_handlers();

    Executor &executor_;
    SemaphoreHandle_t lock_ = nullptr;  // guards portal_: the server has a task
    std::unique_ptr<Portal> portal_;
    httpd_handle_t server_ = nullptr;
};

}  // namespace fleet::esp
