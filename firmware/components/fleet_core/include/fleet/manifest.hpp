// SPDX-License-Identifier: Apache-2.0
// A signed statement about an image: who holds the key says that these bytes
// may run on these devices.
#pragma once

#include "fleet/crypto.hpp"
#include "fleet/status.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

struct Manifest {
    std::string project;
    std::string version;
    std::string sha256;  // of the whole image, hex
    std::int64_t size = 0;
    std::int64_t chip = -1;  // the image's chip id
    std::int64_t secure_version = 0;
    std::int64_t not_before_ms = 0;  // UTC; 0: at any time
    // The permission to go back: a device that runs this version takes the image
    // although its own version is older. "": none.
    std::string rollback_from;
};

// open_manifest checks the signature over the text as it stands, then reads it:
// {"project":…,"version":…,"chip":9,"size":…,"sha256":…,"secure_version":…,"not_before":…,
// "rollback_from":…}.
Status open_manifest(Crypto &crypto, const Ed25519Key &key, std::string_view text, std::string_view signature_base64,
                     Manifest &manifest);

}  // namespace fleet
