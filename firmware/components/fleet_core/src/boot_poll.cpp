// SPDX-License-Identifier: Apache-2.0
#include "fleet/boot_poll.hpp"

#include "fleet/base64.hpp"
#include "fleet/crypto.hpp"
#include "fleet/hex.hpp"
#include "fleet/json_scan.hpp"
#include "fleet/stored.hpp"

#include <iterator>

namespace fleet {
namespace {

constexpr std::size_t max_body = 4096;
constexpr std::size_t max_answer = 8191;

// A version 4 UUID.
std::string make_uuid(const System &system) {
    std::uint8_t b[16];
    system.random({b, sizeof b});
    b[6] = static_cast<std::uint8_t>((b[6] & 0x0f) | 0x40);
    b[8] = static_cast<std::uint8_t>((b[8] & 0x3f) | 0x80);
    std::string text = encode_hex({b, sizeof b});
    for (const std::size_t at : {8u, 13u, 18u, 23u})
        text.insert(at, 1, '-');
    return text;
}

void write_chip(JsonWriter &w, const ChipInfo &chip) {
    // Stock devices number the plain ESP32 1 here, and 0 in images.
    const int model = chip.image_id == 0 ? 1 : chip.image_id;
    w.member("chip_model_name", chip.model).key("chip_info").begin_object().member("model", model);
    w.member("cores", int{chip.cores}).member("revision", int{chip.revision}).member("features", 0).end_object();
}

void write_app(JsonWriter &w, const AppInfo &app) {
    w.begin_object("application").member("name", app.project).member("version", app.version);
    w.member("compile_time", app.compile_time).member("idf_version", app.idf_version);
    w.member("elf_sha256", app.elf_sha256).end_object();
}

void write_partitions(JsonWriter &w, const Machine &machine) {
    const std::string table = machine.system->partition_table_json();
    w.key("partition_table").raw(scan_json(table, {}).ok() ? std::string_view(table) : "[]");
    if (!machine.updater) return;
    const SlotInfo slot = machine.updater->running();
    w.begin_object("ota").member("label", slot.label).member("state", to_string(slot.state)).end_object();
}

void write_display(JsonWriter &w, const Display &display) {
    w.begin_object("display").member("monochrome", display.monochrome());
    w.member("width", display.width()).member("height", display.height()).end_object();
}

void write_board(JsonWriter &w, const Machine &machine) {
    const BoardInfo &board = machine.board;
    w.begin_object("board").member("type", board.type).member("name", board.name);
    w.member("manufacturer", board.manufacturer);
    if (machine.network) {
        w.member("ssid", machine.network->ssid()).member("rssi", machine.network->rssi());
        w.member("channel", machine.network->channel()).member("ip", machine.network->ip());
    }
    w.member("mac", machine.system->mac()).end_object();
}

std::string serial_of(const Machine &machine) {
    return machine.identity ? machine.identity->serial() : std::string();
}

// seed_of gives the private half of the device's key, made when first asked for.
// The flash that holds it should be encrypted where others can reach the board.
bool seed_of(const Machine &machine, Ed25519Seed &seed) {
    std::string text;
    if (stored_text(*machine.store, "device_key", text) && decode_hex(text, {seed.data(), seed.size()}).ok())
        return true;
    machine.system->random({seed.data(), seed.size()});
    put(*machine.store, "device_key", encode_hex({seed.data(), seed.size()}));
    // A key that is not kept would shut the device out at its next boot.
    return stored_text(*machine.store, "device_key", text);
}

// sign fills in key and signature, or nothing where there is no key.
bool sign(const Machine &machine, const std::string &message, KeyProof &proof) {
    Ed25519Seed seed{};
    Ed25519Key key{};
    Ed25519Signature signature{};
    if (!machine.crypto || !seed_of(machine, seed)) return false;
    const Status signed_ = machine.crypto->sign_ed25519(seed, Bytes(message), key, signature);
    seed.fill(0);
    if (!signed_.ok()) return false;
    proof.key = encode_base64({key.data(), key.size()});
    proof.signature = encode_base64({signature.data(), signature.size()});
    return true;
}

// send posts body with the headers that stock devices send, and those of the proof.
Result<HttpResponse> send(const Machine &machine, std::string_view url, const std::string &uuid, std::string_view body,
                          std::string &reply, const KeyProof &proof = {}) {
    const std::string serial = serial_of(machine);
    HttpHeader list[10] = {
        {"Device-Id", machine.system->mac()},
        {"Client-Id", uuid},
        {"User-Agent", std::string(machine.board.name).append("/").append(machine.system->app().version)},
        {"Accept-Language", machine.board.language},
        {"Activation-Version", serial.empty() ? "1" : "2"},
        {"Content-Type", "application/json"},
    };
    std::size_t count = 6;
    const auto add = [&](const char *name, const std::string &value) {
        if (!value.empty()) list[count++] = {name, value};
    };
    add("Serial-Number", serial);
    add("Device-Key", proof.key);
    add("Device-Key-Challenge", proof.challenge);
    add("Device-Key-Signature", proof.signature);
    return machine.http->post(url, list, count, Bytes(body), reply, max_answer);
}

Status write_activation(JsonWriter &w, const Machine &machine, const std::string &challenge) {
    w.begin_object();
    if (const std::string serial = serial_of(machine); !serial.empty()) {
        const Result<std::string> hmac = machine.identity->hmac(challenge);
        // A serial without a key proves nothing: the device is claimed by its code.
        if (!hmac.ok() && hmac.status().code != Code::unsupported) return hmac.status();
        if (hmac.ok()) {
            w.member("algorithm", "hmac-sha256").member("serial_number", serial);
            w.member("challenge", challenge).member("hmac", hmac.value());
        }
    }
    w.end_object();
    return {};
}

}  // namespace

std::string client_id(KvStore &store, const System &system) {
    std::string uuid;
    if (stored_text(store, "uuid", uuid) && uuid.size() == 36) return uuid;
    uuid = make_uuid(system);
    put(store, "uuid", uuid);
    return uuid;
}

std::string key_message(std::string_view device, std::string_view uuid, std::string_view challenge) {
    std::string text = "fleetd device key v1\n";
    for (const char c : device)
        if (c != ':') text += c;
    text.append("\n").append(uuid).append("\n").append(challenge);
    return text;
}

KeyProof prove_key(const Machine &machine, const std::string &uuid, const std::string &challenge) {
    KeyProof proof;
    if (!sign(machine, key_message(machine.system->mac(), uuid, challenge), proof) || challenge.empty()) {
        proof.signature.clear();
        return proof;
    }
    proof.challenge = challenge;
    return proof;
}

std::string connect_message(const BrokerSettings &broker, std::string_view unix_ms) {
    std::string text = "fleetd device connect v1\n";
    text.append(broker.client_id).append("\n").append(broker.username).append("\n").append(unix_ms);
    return text;
}

// Without a clock the broker refuses, and the next poll sets it.
std::string connect_password(const Machine &machine, const BrokerSettings &broker) {
    if (!broker.sign_connect) return broker.password;
    char time[24];
    JsonWriter w(time, sizeof time);
    w.integer(machine.clock->unix_ms());
    KeyProof proof;
    if (!sign(machine, connect_message(broker, w.view()), proof)) return broker.password;
    std::string password = broker.password;
    password.append(".").append(w.view()).append(".").append(proof.signature);
    return password;
}

void write_poll_body(JsonWriter &w, const Machine &machine, std::string_view uuid) {
    const System &system = *machine.system;
    w.begin_object().member("version", 2).member("language", machine.board.language);
    w.member("flash_size", system.chip().flash_size);
    // A string in stock firmware, so here too.
    w.key("minimum_free_heap_size").open_text().digits(system.heap_min()).close_text();
    w.member("mac_address", system.mac()).member("uuid", uuid);
    write_chip(w, system.chip());
    write_app(w, system.app());
    write_partitions(w, machine);
    if (machine.display) write_display(w, *machine.display);
    w.member("reset_reason", to_string(system.reset_reason()));
    write_board(w, machine);
    w.end_object();
}

Status poll_server(const Machine &machine, const std::string &url, const std::string &uuid, PollAnswer &answer) {
    std::string body(max_body, '\0');
    JsonWriter w(body.data(), body.size());
    write_poll_body(w, machine, uuid);
    if (w.overflow()) return {Code::no_space, "the poll's body is too long"};
    std::string challenge;
    for (int polls = 0; polls < 2; ++polls) {
        std::string reply;
        const Result<HttpResponse> r = send(machine, url, uuid, w.view(), reply, prove_key(machine, uuid, challenge));
        if (!r.ok()) return r.status();
        if (r.value().status != 200) return {Code::unavailable, "the server did not answer 200 to the poll"};
        answer = PollAnswer{};
        if (Status s = parse_poll_answer(reply, answer); !s.ok()) return s;
        challenge = answer.key_challenge;
        if (challenge.empty()) break;
    }
    return {};
}

Result<int> activate(const Machine &machine, const std::string &url, const std::string &uuid,
                     const std::string &challenge) {
    char body[640];
    JsonWriter w(body, sizeof body);
    if (Status s = write_activation(w, machine, challenge); !s.ok()) return s;
    if (w.overflow()) return Status{Code::no_space, "the challenge is too long"};
    std::string target = url;
    target += url.empty() || url.back() != '/' ? "/activate" : "activate";
    std::string reply;
    const Result<HttpResponse> r = send(machine, target, uuid, w.view(), reply);
    if (!r.ok()) return r.status();
    return r.value().status;
}

}  // namespace fleet
