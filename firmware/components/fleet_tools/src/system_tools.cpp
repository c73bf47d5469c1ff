// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"
#include "fleet/boot_poll.hpp"

namespace fleet {

namespace {

constexpr ToolInfo info_info =
    ToolInfo("self.get_system_info", "Get the system information").UserOnly().Repeats(Repeat::reads);

constexpr ToolInfo reboot_info = ToolInfo("self.reboot", "Reboot the system").UserOnly().Repeats(Repeat::disrupts);

Status get_system_info(void *context, Call &call) {
    const Machine &m = *kit_of(context).machine;
    write_poll_body(call.result.begin_json(), m, client_id(*m.store, *m.system));
    return call.result.end_json();
}

Status reboot(void *context, Call &call) {
    kit_of(context).unit->restart();
    return call.result.boolean(true);
}

}  // namespace

Status add_system_tools(ToolRegistry &registry, Toolkit &kit) {
    const Status added = registry.add(info_info, get_system_info, &kit);
    return added.ok() ? registry.add(reboot_info, reboot, &kit) : added;
}

}  // namespace fleet
