// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

namespace fleet {

namespace {

constexpr Property colour_properties[] = {
    Property::Int("r").Required().Range(0, 255).Describe("red"),
    Property::Int("g").Required().Range(0, 255).Describe("green"),
    Property::Int("b").Required().Range(0, 255).Describe("blue"),
};
constexpr ToolInfo colour_info =
    ToolInfo("self.led.set_rgb", "Set the colour of the LED. All zero turns it off.").With(colour_properties);

Status set_rgb(void *context, Call &call) {
    const auto part = [&call](const char *name) { return static_cast<std::uint8_t>(call.args.integer(name)); };
    return ok_or(kit_of(context).machine->led->set_rgb(part("r"), part("g"), part("b")), call);
}

}  // namespace

Status add_led_tools(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->led == nullptr) return {};
    return registry.add(colour_info, set_rgb, &kit);
}

}  // namespace fleet
