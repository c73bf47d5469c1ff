// SPDX-License-Identifier: Apache-2.0
// What a person set stays set: keys of the KvStore.
#pragma once

namespace fleet {

constexpr char kVolumeKey[] = "volume";
constexpr char kBrightnessKey[] = "brightness";
constexpr char kThemeKey[] = "theme";

}  // namespace fleet
