// SPDX-License-Identifier: Apache-2.0
#include "fleet/tools/toolkit.hpp"

namespace fleet {

namespace {

using AddGroup = Status (*)(ToolRegistry &, Toolkit &);

// The order of stock devices: what anyone may use comes first.
constexpr AddGroup groups[] = {add_status_tools, add_sound_tools,    add_screen_tools,  add_led_tools,
                               add_system_tools, add_upgrade_tools,  add_picture_tools, add_config_tools,
                               add_log_tools,    add_core_dump_tools};
constexpr AddGroup safe_groups[] = {add_system_tools, add_upgrade_tools, add_log_tools, add_core_dump_tools};

template <std::size_t N>
Status add(const AddGroup (&list)[N], ToolRegistry &registry, Toolkit &kit) {
    for (const AddGroup group : list) {
        const Status added = group(registry, kit);
        if (!added.ok()) return added;
    }
    return {};
}

}  // namespace

Status add_all_tools(ToolRegistry &registry, Toolkit &kit, bool safe_mode) {
    return safe_mode ? add(safe_groups, registry, kit) : add(groups, registry, kit);
}

}  // namespace fleet
