// SPDX-License-Identifier: Apache-2.0
// All of fleetd that the rest of this firmware sees.
#pragma once

// start_fleet makes the device one of the fleet's: logs and core dumps can be fetched, and a new
// image is on trial until it has reached the server. It needs the default event loop, and may come
// before the network. poll_url is the fleet's, as "https://fleet.example.org/xiaozhi/ota/".
void start_fleet(const char *poll_url);
