// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"
#include "settings.hpp"

namespace fleet {

namespace {

constexpr Property brightness_properties[] = {
    Property::Int("brightness").Required().Range(0, 100).Describe("percent"),
};
constexpr ToolInfo brightness_info =
    ToolInfo("self.screen.set_brightness", "Set the brightness of the screen.").With(brightness_properties);

constexpr Property theme_properties[] = {
    Property::Text("theme").Required().AtMost(16).Describe("light or dark"),
};
constexpr ToolInfo theme_info =
    ToolInfo("self.screen.set_theme", "Set the theme of the screen: `light` or `dark`.").With(theme_properties);

Status set_brightness(void *context, Call &call) {
    const Machine &m = *kit_of(context).machine;
    const std::int64_t percent = call.args.integer("brightness");
    Status s = m.display->set_brightness(static_cast<int>(percent));
    if (s.ok()) s = m.store->set_int(brightness_key, percent);
    return ok_or(s, call);
}

Status set_theme(void *context, Call &call) {
    const Machine &m = *kit_of(context).machine;
    const std::string_view theme = call.args.text("theme");
    Status s = m.display->set_theme(theme);
    if (s.ok()) s = m.store->set(theme_key, theme);
    return ok_or(s, call);
}

}  // namespace

Status add_screen_tools(ToolRegistry &registry, Toolkit &kit) {
    const Display *display = kit.machine->display;
    if (display == nullptr) return {};
    Status added;
    if (display->brightness().ok()) added = registry.add(brightness_info, set_brightness, &kit);
    if (added.ok() && !display->theme().empty()) added = registry.add(theme_info, set_theme, &kit);
    return added;
}

}  // namespace fleet
