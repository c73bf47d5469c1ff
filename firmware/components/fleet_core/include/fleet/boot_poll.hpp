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

// poll_server sends one poll. It blocks: call it on the worker.
Status poll_server(const Machine &machine, const std::string &url, const std::string &uuid, PollAnswer &answer);

// activate asks once whether the device has been claimed, and gives the status:
// 200 yes, 202 not yet. It blocks, too.
Result<int> activate(const Machine &machine, const std::string &url, const std::string &uuid,
                     const std::string &challenge);

}  // namespace fleet
