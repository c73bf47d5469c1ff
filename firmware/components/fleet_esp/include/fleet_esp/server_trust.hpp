// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fleet::esp {

// ServerTrust says which certificates a server may show: those of one private
// authority, or of the public ones in ESP-IDF's bundle.
struct ServerTrust {
    const char *ca_pem = nullptr;  // null: the bundle
};

}  // namespace fleet::esp
