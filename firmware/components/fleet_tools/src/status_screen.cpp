// SPDX-License-Identifier: Apache-2.0
// What the screen shows when there is nothing else to show: what the device is
// and whether it has its server. It is drawn when that changes, so that a claim
// code, an alert or a picture stays until then.
#include "background.hpp"
#include "fleet/later.hpp"

namespace fleet {

namespace {

constexpr std::uint32_t look_ms = 500;

void draw(const Toolkit &kit, bool online) {
    const Machine &m = *kit.machine;
    std::string text = "version ";
    text.append(m.system->app().version).append("\n").append(m.system->mac()).append("\n");
    if (m.network != nullptr && m.network->connected()) {
        text.append(m.network->ssid()).append("  ").append(m.network->ip()).append("\n");
    }
    text.append(online ? "online" : "no connection to the server");
    if (kit.unit->crashes().safe_mode()) text.append("\nsafe mode: too many crashes");
    m.display->show_text(m.board.name, text);
}

void look(void *context) {
    Toolkit &kit = kit_of(context);
    const bool online = kit.unit->online();
    if (online != kit.shown_online) draw(kit, online);
    kit.shown_online = online;
    post_after(*kit.machine, look_ms, {look, &kit});
}

}  // namespace

void start_status_screen(Toolkit &kit) {
    if (kit.machine->display == nullptr) return;
    draw(kit, false);
    look(&kit);
}

}  // namespace fleet
