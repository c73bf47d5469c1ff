// SPDX-License-Identifier: Apache-2.0
// What the screen shows when there is nothing else to show: what the device is
// and whether it has its server. It is drawn when that changes, so that a claim
// code, an alert or a picture stays until then.
#include "fleet/tools/toolkit.hpp"

namespace fleet {

namespace {

constexpr std::uint32_t look_ms = 500;

void draw(const Toolkit &kit, bool online) {
    const Machine &m = *kit.machine;
    std::string text = "version " + m.system->app().version + "\n" + m.system->mac() + "\n";
    if (m.network != nullptr && m.network->connected()) text += m.network->ssid() + "  " + m.network->ip() + "\n";
    text += online ? "online" : "no connection to the server";
    if (kit.unit->crashes().safe_mode()) text += "\nsafe mode: too many crashes";
    m.display->show_text(m.board.name, text);
}

void look(const Toolkit &kit, bool shown) {
    const bool online = kit.unit->online();
    if (online != shown) draw(kit, online);
    kit.machine->executor->post_after(look_ms, [&kit, online] { look(kit, online); });
}

}  // namespace

void start_status_screen(const Toolkit &kit) {
    if (kit.machine->display == nullptr) return;
    draw(kit, false);
    look(kit, false);
}

}  // namespace fleet
