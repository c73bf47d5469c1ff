// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

namespace fleet {

namespace {

constexpr ToolInfo get_info =
    ToolInfo("self.config.get", "Get the configuration: its version, whether it is on trial, and all values.")
        .UserOnly()
        .Repeats(Repeat::reads);

constexpr Property set_properties[] = {
    Property::Text("document")
        .Required()
        .AtMost(ConfigStore::max_bytes)
        .Describe("JSON: {\"version\":N,\"values\":{...}}; null is a default"),
};
constexpr ToolInfo set_info =
    ToolInfo("self.config.set",
             "Set the configuration. It takes effect at once, and is taken back if the device loses the server within "
             "two minutes.")
        .With(set_properties)
        .UserOnly();

Status write_config(const ConfigStore &config, Call &call) {
    config.write(call.result.begin_json());
    return call.result.end_json();
}

Status get_config(void *context, Call &call) {
    return write_config(kit_of(context).unit->config(), call);
}

Status set_config(void *context, Call &call) {
    const Toolkit &kit = kit_of(context);
    const Result<JsonDocument> document = JsonDocument::parse(call.args.text("document"), {ConfigStore::max_bytes, 4});
    if (!document.ok()) return document.status();
    const Refusal refusal = kit.unit->configure(document.value().root());
    if (refusal.refused()) {
        char rest[64];
        JsonWriter w(rest, sizeof rest);
        w.append(refusal.after);
        if (refusal.with_bound) w.digits(refusal.bound);
        return call.result.fail(Code::invalid, refusal.before, refusal.name, w.view());
    }
    return write_config(kit.unit->config(), call);
}

}  // namespace

Status add_config_tools(ToolRegistry &registry, Toolkit &kit) {
    const Status added = registry.add(get_info, get_config, &kit);
    return added.ok() ? registry.add(set_info, set_config, &kit) : added;
}

}  // namespace fleet
