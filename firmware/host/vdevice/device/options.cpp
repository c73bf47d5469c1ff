// SPDX-License-Identifier: Apache-2.0
#include "device/options.hpp"

#include "fleet/hex.hpp"
#include "ports/openssl_crypto.hpp"

#include <cstdlib>
#include <cstring>

namespace fleet::host {

const char usage[] =
    "usage: vdevice --ota-url URL --state-dir DIR [options]\n"
    "\n"
    "  --board NAME       a folder of firmware/boards; esp32s3-lcd by default\n"
    "  --mac MAC          station address; default: made from --id\n"
    "  --id TEXT          tells units apart; default: the state directory\n"
    "  --image FILE       image in slot A of a new unit; default: version 1.0.0 of the board\n"
    "  --signed-by KEY    take only images with a manifest signed by this Ed25519 key, 64 hex digits\n"
    "  --url-hosts LIST   hosts that tools may talk to beside the server's, separated by commas\n"
    "  --broker HOST:PORT the broker to connect to, whatever the server says\n"
    "  --trial-ms MS      how long a new image may take to prove itself (default 300000)\n"
    "  --proof-ms MS      how long it has to stay online for that, half of --trial-ms at most (default 30000)\n"
    "  --config-trial-ms MS\n"
    "                     how long a new configuration is on trial (default 120000)\n"
    "  --restart-ms MS    from the end of an upgrade to the restart (default 1500)\n"
    "  --ca FILE          trusted certificates, PEM; default: the system's, or SSL_CERT_FILE\n"
    "  --tls-port PORT    the broker's port that means TLS (default 8883)\n"
    "  --ip ADDRESS       reported as the unit's own\n"
    "  --hello            say hello with features.mcp at each connection\n"
    "  --run-elf          run the program that an image carries, in place of this one: whoever can send\n"
    "                     images can then run programs on this machine\n"
    "  --fault SPEC       may be repeated:\n"
    "                       kill=STEP[:N]        SIGKILL at the N-th time the step is reached\n"
    "                       kill=N               SIGKILL at the N-th step, whichever it is\n"
    "                       reset-at=BYTES       power cut at that byte of a download, once\n"
    "                       drop-at=BYTES        connection lost at that byte, once\n"
    "                       corrupt-at=BYTES     one bit of that byte flips, once\n"
    "                       rate=BYTES           bytes per second of a download\n"
    "                       drop-mqtt=SECONDS    broker connection cut again and again\n"
    "                       duplicate            every message arrives twice\n"
    "                       full-disk            nothing more can be written to the other slot\n"
    "                       clock-jump=S[:MS]    the clock jumps by S seconds, ten seconds (or MS) after the start\n"
    "  --quiet            no log on standard error\n"
    "\n"
    "A unit with a serial number has it in DIR/identity.key: 32 characters, and in the next line its HMAC key,\n"
    "64 hex digits.\n";

namespace {

Status set_key(Options &o, const char *value) {
    o.signed_only = true;
    return decode_hex(value, {o.key.data(), o.key.size()});
}

// "host:port"; a name or an IPv4 address.
Status set_broker(Options &o, const std::string &value) {
    const std::size_t colon = value.find(':');
    if (colon == 0 || colon == std::string::npos) return {Code::invalid, "--broker is not host:port"};
    const unsigned long port = std::strtoul(value.c_str() + colon + 1, nullptr, 10);
    if (port == 0 || port > 65535) return {Code::invalid, "--broker is not host:port"};
    o.broker_host = value.substr(0, colon);
    o.broker_port = static_cast<std::uint16_t>(port);
    return {};
}

struct TextOption {
    const char *name;
    std::string Options::*member;
};
constexpr TextOption text_options[] = {
    {"--ota-url", &Options::ota_url},
    {"--state-dir", &Options::state_dir},
    {"--board", &Options::board},
    {"--mac", &Options::mac},
    {"--id", &Options::id},
    {"--image", &Options::image},
    {"--url-hosts", &Options::url_hosts},
    {"--ca", &Options::ca_file},
    {"--ip", &Options::ip},
};

struct TimeOption {
    const char *name;
    std::uint32_t Options::*member;
};
constexpr TimeOption time_options[] = {
    {"--trial-ms", &Options::trial_ms},
    {"--proof-ms", &Options::proof_ms},
    {"--config-trial-ms", &Options::config_trial_ms},
    {"--restart-ms", &Options::restart_ms},
};

bool Options::*flag_named(const char *name) {
    if (std::strcmp(name, "--quiet") == 0) return &Options::quiet;
    if (std::strcmp(name, "--run-elf") == 0) return &Options::run_elf;
    if (std::strcmp(name, "--hello") == 0) return &Options::hello;
    return nullptr;
}

Status set(Options &o, const char *name, const char *value) {
    for (const TextOption &t : text_options) {
        if (std::strcmp(t.name, name) != 0) continue;
        o.*t.member = value;
        return {};
    }
    if (std::strcmp(name, "--fault") == 0) return o.faults.emplace_back(value), Status{};
    if (std::strcmp(name, "--signed-by") == 0) return set_key(o, value);
    if (std::strcmp(name, "--broker") == 0) return set_broker(o, value);
    const unsigned long number = std::strtoul(value, nullptr, 10);
    for (const TimeOption &t : time_options) {
        if (std::strcmp(name, t.name) == 0) return o.*t.member = static_cast<std::uint32_t>(number), Status{};
    }
    if (std::strcmp(name, "--tls-port") == 0) return o.tls_port = static_cast<std::uint16_t>(number), Status{};
    return {Code::invalid, "an option is not known"};
}

// A locally administered address, the same for the same id.
std::string mac_of(const std::string &id) {
    const auto sum = OpensslCrypto().sha256();
    sum->update(Bytes{id});
    const Digest d = sum->finish();
    std::string mac = "02";
    for (int i = 0; i < 5; ++i)
        mac += ":" + hex_of(&d[static_cast<std::size_t>(i)], 1);
    return mac;
}

Status complete(Options &o) {
    if (o.ota_url.empty() || o.state_dir.empty()) return {Code::invalid, "--ota-url and --state-dir are needed"};
    if (o.state_dir.find('/') == std::string::npos) o.state_dir = "./" + o.state_dir;
    if (o.id.empty()) o.id = o.state_dir;
    if (o.mac.empty()) o.mac = mac_of(o.id);
    return {};
}

}  // namespace

Result<Options> parse_options(int argc, char **argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        if (bool Options::*const flag = flag_named(argv[i])) {
            o.*flag = true;
            continue;
        }
        if (i + 1 >= argc) return Status{Code::invalid, "an option has no value"};
        const Status taken = set(o, argv[i], argv[i + 1]);
        if (!taken.ok()) return taken;
        ++i;
    }
    const Status whole = complete(o);
    if (!whole.ok()) return whole;
    return o;
}

}  // namespace fleet::host
