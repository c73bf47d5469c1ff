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
    "  --board NAME       esp32-devkit, esp32c3-supermini or esp32s3-lcd (default)\n"
    "  --mac MAC          station address; default: made from --id\n"
    "  --id TEXT          tells units apart; default: the state directory\n"
    "  --image FILE       image in slot A of a new unit; default: version 1.0.0 of the board\n"
    "  --signed-by KEY    take only images with a manifest signed by this Ed25519 key, 64 hex digits\n"
    "  --url-hosts LIST   hosts that tools may talk to beside the server's, separated by commas\n"
    "  --trial-ms MS      how long a new image may take to prove itself (default 300000)\n"
    "  --restart-ms MS    from the end of an upgrade to the restart (default 1500)\n"
    "  --ca FILE          trusted certificates, PEM\n"
    "  --tls-port PORT    the broker's port that means TLS (default 8883)\n"
    "  --ip ADDRESS       reported as the unit's own\n"
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
    "                       clock-jump=SECONDS   the clock jumps, ten seconds after the start\n"
    "  --quiet            no log on standard error\n";

namespace {

Status set_key(Options &o, const char *value) {
    o.signed_only = true;
    return decode_hex(value, {o.key.data(), o.key.size()});
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

Status set(Options &o, const char *name, const char *value) {
    for (const TextOption &t : text_options) {
        if (std::strcmp(t.name, name) != 0) continue;
        o.*t.member = value;
        return {};
    }
    if (std::strcmp(name, "--fault") == 0) return o.faults.emplace_back(value), Status{};
    if (std::strcmp(name, "--signed-by") == 0) return set_key(o, value);
    const unsigned long number = std::strtoul(value, nullptr, 10);
    if (std::strcmp(name, "--tls-port") == 0) return o.tls_port = static_cast<std::uint16_t>(number), Status{};
    if (std::strcmp(name, "--trial-ms") == 0) return o.trial_ms = static_cast<std::uint32_t>(number), Status{};
    if (std::strcmp(name, "--restart-ms") == 0) return o.restart_ms = static_cast<std::uint32_t>(number), Status{};
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
        if (std::strcmp(argv[i], "--quiet") == 0) {
            o.quiet = true;
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
