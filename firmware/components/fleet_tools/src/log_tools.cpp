// SPDX-License-Identifier: Apache-2.0
#include "background.hpp"

namespace fleet {

namespace {

constexpr Property tail_properties[] = {
    Property::Int("from").Range(0, 0xFFFFFFFF).Default(0).Describe("number of the first line wanted"),
    Property::Int("lines").Range(1, 100).Default(50).Describe("how many at most"),
};
constexpr ToolInfo tail_info =
    ToolInfo("self.logs.tail", "The last lines of the log. `next` is the number to go on from.")
        .With(tail_properties)
        .UserOnly()
        .Repeats(Repeat::reads);

constexpr Property level_properties[] = {
    Property::Text("level").Required().AtMost(8).Describe("none, error, warn, info, debug or verbose"),
    Property::Text("tag").DefaultText("").AtMost(15).Describe("of one part; empty: of all"),
};
constexpr ToolInfo level_info = ToolInfo("self.logs.set_level", "Set how much is logged, until the next restart.")
                                    .With(level_properties)
                                    .UserOnly();

// Without a number to begin from, the newest lines are wanted.
std::uint32_t start_of(const LogRing &log, std::int64_t from, std::int64_t lines) {
    if (from > 0) return static_cast<std::uint32_t>(from);
    const std::int64_t start = std::int64_t{log.next()} - lines;
    return start > log.first() ? static_cast<std::uint32_t>(start) : log.first();
}

Status tail(void *context, Call &call) {
    const std::int64_t from = call.args.integer("from"), lines = call.args.integer("lines");
    kit_of(context).with_log([&](LogRing &log) {
        JsonWriter &w = call.result.begin_json().begin_object();
        w.member("first", log.first()).key("lines");
        const std::uint32_t next = log.tail(w, start_of(log, from, lines), static_cast<std::size_t>(lines));
        w.member("next", next).end_object();
    });
    return call.result.end_json();
}

Status set_level(void *context, Call &call) {
    const std::string_view tag = call.args.text("tag");
    LogLevel level = LogLevel::info;
    if (Status read = read_level(call, level); !read.ok()) return read;
    bool set = true;
    kit_of(context).with_log([&](LogRing &log) {
        if (tag.empty()) {
            log.set_level(level);
        } else {
            set = log.set_tag_level(tag, level);
        }
    });
    return set ? call.result.boolean(true) : Status{Code::no_space, "too many tags have a level of their own"};
}

}  // namespace

Status read_level(const Call &call, LogLevel &level) {
    const std::string_view word = call.args.text("level");
    level = parse_log_level(word);
    if (word == to_string(level)) return {};
    return {Code::invalid, "the levels are none, error, warn, info, debug and verbose"};
}

Status add_log_tools(ToolRegistry &registry, Toolkit &kit) {
    if (!kit.with_log) return {};
    Status added = registry.add(tail_info, tail, &kit);
    if (added.ok()) added = registry.add(level_info, set_level, &kit);
    return added.ok() ? add_log_stream(registry, kit) : added;
}

}  // namespace fleet
