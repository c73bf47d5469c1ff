// SPDX-License-Identifier: Apache-2.0
// New images, and the way back. The answer names a job; how it goes on follows
// as notifications, over the restart.
#include "background.hpp"
#include "fleet/hex.hpp"

namespace fleet {

namespace {

constexpr std::int64_t most_bytes = 16 << 20;

constexpr Property job_property =
    Property::Text("job").DefaultText("").AtMost(max_job).Describe("name of the job in reports; made up if empty");

constexpr Property upgrade_properties[] = {
    Property::Text("url").Required().Describe("of the image"),
    Property::Text("sha256").DefaultText("").AtMost(64).Describe("of the image file, hex"),
    Property::Int("size").Range(0, most_bytes).Default(0).Describe("of the image file in bytes; 0: not told"),
    Property::Text("manifest").DefaultText("").AtMost(1024).Describe("signed statement about the image"),
    Property::Text("signature").DefaultText("").AtMost(128).Describe("of the manifest, Ed25519 in base64"),
    job_property,
};
constexpr ToolInfo upgrade_info =
    ToolInfo("self.upgrade_firmware",
             "Upgrade firmware from a specific URL. This will download and install the firmware, then reboot the "
             "device.")
        .With(upgrade_properties)
        .UserOnly()
        .Repeats(Repeat::disrupts);

constexpr Property rollback_properties[] = {
    Property::Text("expected_sha256").DefaultText("").AtMost(64).Describe("app_elf_sha256 that the image has to have"),
    job_property,
};
constexpr ToolInfo rollback_info =
    ToolInfo("self.rollback", "Go back to the image in the other slot, then reboot the device.")
        .With(rollback_properties)
        .UserOnly()
        .Repeats(Repeat::disrupts);

std::string job_of(const Machine &m, const Call &call) {
    const std::string_view named = call.args.text("job");
    if (!named.empty()) return std::string(named);
    std::uint8_t chance[8];
    m.system->random({chance, sizeof chance});
    return encode_hex({chance, sizeof chance});
}

Status accept(Call &call, const std::string &job) {
    call.result.begin_json().begin_object().member("job", job).member("state", "accepted").end_object();
    return call.result.end_json();
}

Status upgrade(void *context, Call &call) {
    const Toolkit &kit = kit_of(context);
    FirmwareOrder order;
    order.url = call.args.text("url");
    order.sha256 = call.args.text("sha256");
    order.size = call.args.integer("size");
    order.manifest = call.args.text("manifest");
    order.signature = call.args.text("signature");
    const std::string job = job_of(*kit.machine, call);
    const Status started = kit.unit->upgrade(order, job);
    return started.ok() ? accept(call, job) : started;
}

Status rollback(void *context, Call &call) {
    const Toolkit &kit = kit_of(context);
    const Result<SlotInfo> other = kit.machine->updater->other();
    if (!other.ok()) return other.status();
    const std::string_view expected = call.args.text("expected_sha256");
    if (!expected.empty() && other.value().elf_sha256 != expected) {
        return {Code::refused, "the other slot holds another image than the one expected"};
    }
    const std::string job = job_of(*kit.machine, call);
    const Status started = kit.unit->ota().roll_back(job);
    return started.ok() ? accept(call, job) : started;
}

}  // namespace

Status add_upgrade_tools(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->updater == nullptr) return {};
    const Status added = registry.add(upgrade_info, upgrade, &kit);
    if (!added.ok() || !kit.machine->updater->other().ok()) return added;
    return registry.add(rollback_info, rollback, &kit);
}

}  // namespace fleet
