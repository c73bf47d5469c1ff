// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include "fleet/tools/toolkit.hpp"

namespace fleet {

// A value that the part refuses now, as after a change of board, is left alone.
void restore_settings(const Machine &m) {
    if (m.store == nullptr) return;
    const Result<std::int64_t> volume = m.store->get_int(kVolumeKey), brightness = m.store->get_int(kBrightnessKey);
    const Result<std::string> theme = m.store->get(kThemeKey);
    if (m.speaker != nullptr && volume.ok()) (void)m.speaker->set_volume(static_cast<int>(volume.value()));
    if (m.display == nullptr) return;
    if (brightness.ok()) (void)m.display->set_brightness(static_cast<int>(brightness.value()));
    if (theme.ok()) (void)m.display->set_theme(theme.value());
}

}  // namespace fleet
