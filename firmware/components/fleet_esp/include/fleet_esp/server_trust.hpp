// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "esp_err.h"

namespace fleet::esp {

// ServerTrust says which certificates a server may show: those of one private
// authority, or of the public ones in ESP-IDF's bundle.
//
// Their dates count once the clock is set. Before, they cannot: the poll that
// brings the date may itself go over TLS. But what had expired at the date that
// EspClock remembers is refused.
struct ServerTrust {
    using Attach = esp_err_t (*)(void *config);  // as crt_bundle_attach of ESP-IDF's clients

    const char *ca_pem = nullptr;  // null: the bundle

    // attach gives what a client needs. There is one private authority per device.
    Attach attach() const;
};

}  // namespace fleet::esp
