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
    const Status set = m.speaker->set_volume(static_cast<int>(volume));
    if (!set.ok()) return set;
    const Status kept = m.store->set_int(kVolumeKey, volume);
    return kept.ok() ? call.result.boolean(true) : kept;
}

}  // namespace

Status add_sound_tools(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->speaker == nullptr) return {};
    return registry.add(volume_info, set_volume, &kit);
}

}  // namespace fleet
