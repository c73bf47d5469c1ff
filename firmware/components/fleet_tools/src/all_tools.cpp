// SPDX-License-Identifier: Apache-2.0
#include "fleet/tools/toolkit.hpp"

#include <iterator>

namespace fleet {

namespace {

using AddGroup = Status (*)(ToolRegistry &, Toolkit &);

// The order of stock devices: what anyone may use comes first.
constexpr AddGroup groups[] = {add_status_tools, add_sound_tools,    add_screen_tools,  add_led_tools,
                               add_system_tools, add_upgrade_tools,  add_picture_tools, add_config_tools,
                               add_log_tools,    add_core_dump_tools};
constexpr AddGroup safe_groups[] = {add_status_tools, add_system_tools, add_upgrade_tools, add_log_tools,
                                    add_core_dump_tools};

}  // namespace

Status add_all_tools(ToolRegistry &registry, Toolkit &kit, bool safe_mode) {
    const AddGroup *group = safe_mode ? safe_groups : groups;
    const std::size_t count = safe_mode ? std::size(safe_groups) : std::size(groups);
    Status added;
    for (std::size_t i = 0; i < count && added.ok(); i++)
        added = group[i](registry, kit);
    return added;
}

}  // namespace fleet
