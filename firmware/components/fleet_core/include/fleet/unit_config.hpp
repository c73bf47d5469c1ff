// SPDX-License-Identifier: Apache-2.0
// The settings that every unit has.
#pragma once

#include "fleet/property.hpp"

namespace fleet {

constexpr Property unit_config_fields[] = {
    Property::Int("heartbeat_s").Range(10, 3600).Default(60).Describe("seconds between two heartbeats"),
    Property::Bool("telemetry").Default(1).Describe("whether to send heartbeats"),
    Property::Text("log_level").DefaultText("info").AtMost(8).Describe("none, error, warn, info, debug, verbose"),
    Property::Text("url_hosts").DefaultText("").AtMost(256).Describe("hosts that tools may fetch from and send to"),
    Property::Bool("allow_http").Default(0).Describe("whether URLs without TLS are followed"),
};

}  // namespace fleet
