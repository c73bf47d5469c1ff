// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include "fleet/stored.hpp"
#include "fleet/tools/toolkit.hpp"

namespace fleet {

// A value that the part refuses now, as after a change of board, is left alone.
void restore_settings(const Machine &m) {
    if (m.store == nullptr) return;
    const auto volume = static_cast<int>(stored_int(*m.store, volume_key, -1));
    const auto brightness = static_cast<int>(stored_int(*m.store, brightness_key, -1));
    std::string theme;
    if (m.speaker != nullptr && volume >= 0) (void)m.speaker->set_volume(volume);
    if (m.display == nullptr) return;
    if (brightness >= 0) (void)m.display->set_brightness(brightness);
    if (stored_text(*m.store, theme_key, theme)) (void)m.display->set_theme(theme);
}

}  // namespace fleet
