// SPDX-License-Identifier: Apache-2.0
// The poll at boot: what a device says of itself to the server before it has a
// broker, and the activation that follows while no operator has claimed it.
#pragma once

#include "fleet/json_writer.hpp"
#include "fleet/poll_answer.hpp"
#include "fleet/ports.hpp"

#include <string>
#include <string_view>

namespace fleet {

// client_id gives the UUID that this device made at its first boot.
std::string client_id(KvStore &store, const System &system);

// write_poll_body writes the body of the poll, all text escaped.
void write_poll_body(JsonWriter &w, const Machine &machine, std::string_view uuid);

// A KeyProof is what a poll says of the key pair that the device made at its first
// boot. Empty members are left out.
struct KeyProof {
    std::string key;        // the public half, base64
    std::string challenge;  // of the server
    std::string signature;  // of key_message, base64
};

// key_message is what the device signs. device is its MAC, in any form.
std::string key_message(std::string_view device, std::string_view uuid, std::string_view challenge);

// prove_key names the key and, if there is a challenge, signs it. Where the
// platform cannot sign there is no key, and the proof is empty.
KeyProof prove_key(const Machine &machine, const std::string &uuid, const std::string &challenge);

// connect_message is what the device signs for a CONNECT at the time.
std::string connect_message(const BrokerSettings &broker, std::string_view unix_ms);

// connect_password gives the password of a CONNECT, with time and signature if the
// broker wants them.
std::string connect_password(const Machine &machine, const BrokerSettings &broker);

// poll_server sends one poll, and a second one with a proof of the device's key if
// the server asks for it. It blocks: call it on the worker.
Status poll_server(const Machine &machine, const std::string &url, const std::string &uuid, PollAnswer &answer);

// activate asks once whether the device has been claimed, and gives the status:
// 200 yes, 202 not yet. It blocks, too.
Result<int> activate(const Machine &machine, const std::string &url, const std::string &uuid,
                     const std::string &challenge);

}  // namespace fleet
