// SPDX-License-Identifier: Apache-2.0
// What a person set stays set: keys of the KvStore.
#pragma once

namespace fleet {

constexpr char volume_key[] = "volume";
constexpr char brightness_key[] = "brightness";
constexpr char theme_key[] = "theme";

}  // namespace fleet
