// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

#include <algorithm>

namespace fleet {

namespace {

constexpr ToolInfo info_info =
    ToolInfo("self.core_dump.get_info", "Whether the last crash left a core dump, and in short what it says.")
        .UserOnly()
        .Repeats(Repeat::reads);

constexpr Property upload_properties[] = {
    Property::Text("url").Required().Describe("where the core dump is posted"),
    Property::Bool("erase").Default(0).Describe("erase it once it has arrived"),
};
constexpr ToolInfo upload_info =
    ToolInfo("self.core_dump.upload", "Upload the core dump of the last crash").With(upload_properties).UserOnly();

Status get_info(void *context, Call &call) {
    const Machine &m = *kit_of(context).machine;
    JsonWriter &w = call.result.begin_json().begin_object();
    w.member("present", m.core_dump->present());
    if (m.core_dump->present()) {
        w.member("size", m.core_dump->size()).member("summary", std::string_view(m.core_dump->summary()));
    }
    w.end_object();
    return call.result.end_json();
}

Outcome upload_dump(const Job &job) {
    const Machine &m = job.machine;
    std::uint32_t at = 0;
    const std::uint32_t size = m.core_dump->size();
    const auto source = [&](MutableBytes into) -> Result<std::size_t> {
        const std::size_t n = std::min<std::size_t>(into.size, size - at);
        if (n == 0) return n;
        const Status read = m.core_dump->read(at, {into.data, n});
        if (!read.ok()) return read;
        at += static_cast<std::uint32_t>(n);
        m.system->feed_watchdog();
        return n;
    };
    Outcome sent = expect_200(m.http->post_file(job.url, "coredump.bin", "application/octet-stream", source));
    if (sent.status.ok() && job.flag) return m.core_dump->erase();
    return sent;
}

Status upload(void *context, Call &call) {
    Toolkit &kit = kit_of(context);
    if (!kit.machine->core_dump->present()) return {Code::not_found, "there is no core dump"};
    return in_background(kit, call, upload_dump, 0, call.args.boolean("erase"));
}

}  // namespace

Status add_core_dump_tools(ToolRegistry &registry, Toolkit &kit) {
    if (kit.machine->core_dump == nullptr) return {};
    const Status added = registry.add(info_info, get_info, &kit);
    return added.ok() && kit.machine->http != nullptr ? registry.add(upload_info, upload, &kit) : added;
}

}  // namespace fleet
