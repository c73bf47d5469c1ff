// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"
#include "settings.hpp"

namespace fleet {

namespace {

constexpr Property volume_properties[] = {
    Property::Int("volume").Required().Range(0, 100).Describe("percent"),
};
constexpr ToolInfo volume_info =
    ToolInfo("self.audio_speaker.set_volume",
             "Set the volume of the audio speaker. If the current volume is unknown, call `self.get_device_status` "
             "first.")
        .With(volume_properties);

Status set_volume(void *context, Call &call) {
    const Machine &m = *kit_of(context).machine;
    const std::int64_t volume = call.args.integer("volume");
    Status s = m.speaker->set_volume(static_cast<int>(volume));
    if (s.ok()) s = m.store->set_int(volume_key, volume);
    return ok_or(s, call);
}

}  // namespace

Status add_sound_tools(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->speaker == nullptr) return {};
    return registry.add(volume_info, set_volume, &kit);
}

}  // namespace fleet
