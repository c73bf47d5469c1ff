// SPDX-License-Identifier: Apache-2.0
// The command line of a virtual device.
#pragma once

#include "fleet/crypto.hpp"
#include "fleet/status.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace fleet::host {

struct Options {
    std::string ota_url;    // where the boot poll goes
    std::string state_dir;  // the unit's flash
    std::string board = "esp32s3-lcd";
    std::string mac;    // or made from --id
    std::string id;     // any text; default: the state directory
    std::string image;  // flashed into slot A of a unit that is new; default: one made for the board
    std::string ip = "127.0.0.1";
    std::string url_hosts;
    std::string broker_host;        // "": the broker that the server names
    std::uint16_t broker_port = 0;  // of broker_host
    std::string ca_file;            // "": the system's
    std::uint16_t tls_port = 8883;
    std::uint32_t trial_ms = 5 * 60 * 1000;
    std::uint32_t proof_ms = 30 * 1000;
    std::uint32_t config_trial_ms = 120 * 1000;
    std::uint32_t restart_ms = 1500;
    bool run_elf = false;
    bool hello = false;  // says hello with features.mcp
    bool signed_only = false;
    Ed25519Key key{};
    std::vector<std::string> faults;
    bool quiet = false;
    std::string edition;  // not an option: which build of this program runs
};

extern const char usage[];

Result<Options> parse_options(int argc, char **argv);

}  // namespace fleet::host
