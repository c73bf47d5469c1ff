// SPDX-License-Identifier: Apache-2.0
// The log while it is written: a notification a second, for a time.
#include "background.hpp"
#include "fleet/later.hpp"

namespace fleet {

namespace {

constexpr std::uint32_t beat_ms = 1000;

constexpr Property stream_properties[] = {
    Property::Int("seconds").Required().Range(0, 600).Describe("for how long; 0 ends it"),
    Property::Text("level").DefaultText("info").AtMost(8).Describe("none, error, warn, info, debug or verbose"),
};
constexpr ToolInfo stream_info =
    ToolInfo("self.logs.stream", "Send new lines of the log as they come (notifications/log).")
        .With(stream_properties)
        .UserOnly();

void write_lines(JsonWriter &w, LogStream &stream, const LogRing &log) {
    const std::uint32_t lost = log.first() > stream.next ? log.first() - stream.next : 0;
    w.key("lines");
    stream.next = log.tail(w, stream.next, SIZE_MAX, stream.most);
    w.member("next", stream.next).member("dropped", lost);
}

std::uint32_t next_line(const Toolkit &kit) {
    std::uint32_t next = 0;
    kit.with_log([&next](LogRing &log) { next = log.next(); });
    return next;
}

void beat(void *context) {
    Toolkit &kit = kit_of(context);
    LogStream &stream = kit.stream;
    stream.running = kit.machine->clock->mono_us() < stream.until_us;
    if (!stream.running) return;
    if (kit.unit->online() && next_line(kit) != stream.next) {
        // The lock is given back before anything is sent.
        kit.unit->notify("notifications/log", Keep::no,
                         [&](JsonWriter &w) { kit.with_log([&](LogRing &log) { write_lines(w, stream, log); }); });
    }
    post_after(*kit.machine, beat_ms, {beat, &kit});
}

Status stream(void *context, Call &call) {
    Toolkit &kit = kit_of(context);
    LogStream &s = kit.stream;
    if (Status read = read_level(call, s.most); !read.ok()) return read;
    s.until_us = kit.machine->clock->mono_us() + call.args.integer("seconds") * 1'000'000;
    if (s.running) return call.result.boolean(true);  // its beat goes on
    s.running = true;
    s.next = next_line(kit);
    post_after(*kit.machine, beat_ms, {beat, &kit});
    return call.result.boolean(true);
}

}  // namespace

Status add_log_stream(ToolRegistry &registry, Toolkit &kit) {
    return registry.add(stream_info, stream, &kit);
}

}  // namespace fleet
