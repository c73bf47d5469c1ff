// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/status_of.hpp"

#include "esp_ota_ops.h"
#include "nvs.h"

namespace fleet::esp {

namespace {

Code code_of(esp_err_t err) {
    switch (err) {
        case ESP_OK: return Code::ok;
        case ESP_ERR_NO_MEM: return Code::no_memory;
        case ESP_ERR_INVALID_ARG:
        case ESP_ERR_NVS_KEY_TOO_LONG:
        case ESP_ERR_NVS_TYPE_MISMATCH: return Code::invalid;
        case ESP_ERR_NOT_FOUND:
        case ESP_ERR_NVS_NOT_FOUND: return Code::not_found;
        case ESP_ERR_NOT_SUPPORTED: return Code::unsupported;
        case ESP_ERR_TIMEOUT: return Code::timeout;
        case ESP_ERR_INVALID_STATE: return Code::busy;
        case ESP_ERR_INVALID_SIZE:
        case ESP_ERR_NVS_NOT_ENOUGH_SPACE:
        case ESP_ERR_NVS_NO_FREE_PAGES:
        case ESP_ERR_NVS_VALUE_TOO_LONG: return Code::no_space;
        case ESP_ERR_INVALID_CRC:
        case ESP_ERR_OTA_VALIDATE_FAILED: return Code::corrupt;
        case ESP_ERR_OTA_SMALL_SEC_VER: return Code::wrong_target;
        case ESP_ERR_OTA_ROLLBACK_FAILED:
        case ESP_ERR_OTA_ROLLBACK_INVALID_STATE: return Code::refused;
        default: return Code::io;
    }
}

}  // namespace

Status status_of(esp_err_t err, const char *sentence) {
    if (err == ESP_OK) return {};
    return {code_of(err), sentence};
}

}  // namespace fleet::esp
