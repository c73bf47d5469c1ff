// SPDX-License-Identifier: Apache-2.0
#include "mcp_fixture.hpp"

#include <doctest/doctest.h>

namespace fleet::test {
namespace {

constexpr Property volume_properties[] = {Property::Int("volume").Range(0, 100).Required()};
constexpr Property theme_properties[] = {Property::Text("theme").Required().AtMost(16)};
constexpr Property many_properties[] = {Property::Bool("on").Default(1).Describe("whether"),
                                        Property::Int("level").Default(7), Property::Text("label").DefaultText("a"),
                                        Property::Text("note")};
constexpr Property url_properties[] = {Property::Text("url").Required().Describe("where the image is")};

constexpr ToolInfo set_volume_info =
    ToolInfo("self.audio_speaker.set_volume", "Set the volume.").With(volume_properties);
constexpr ToolInfo set_theme_info = ToolInfo("self.screen.set_theme", "Set the theme.").With(theme_properties);
constexpr ToolInfo optional_info = ToolInfo("self.demo.many", "Takes much.").With(many_properties);
constexpr ToolInfo status_info = ToolInfo("self.get_device_status", "Status.").Repeats(Repeat::reads);
constexpr ToolInfo count_info = ToolInfo("self.demo.count", "Counts.");
constexpr ToolInfo capture_info = ToolInfo("self.demo.capture", "Takes a picture.");
constexpr ToolInfo say_info = ToolInfo("self.demo.say", "Speaks.");
constexpr ToolInfo huge_info = ToolInfo("self.demo.huge", "Says too much.");
constexpr ToolInfo fails_info = ToolInfo("self.demo.fails", "Fails.");
constexpr ToolInfo later_info = ToolInfo("self.demo.later", "Answers later.");
constexpr ToolInfo later_fails_info = ToolInfo("self.demo.later_fails", "Defers, then fails.");
constexpr ToolInfo reboot_info = ToolInfo("self.reboot", "Restarts.").UserOnly().Repeats(Repeat::disrupts);
constexpr ToolInfo upgrade_info =
    ToolInfo("self.upgrade_firmware", "Upgrades.").With(url_properties).UserOnly().Repeats(Repeat::disrupts);

McpFixture &of(void *context) {
    auto &f = *static_cast<McpFixture *>(context);
    f.runs++;
    return f;
}

Status set_volume(void *context, Call &call) {
    of(context).seen = call.args.integer("volume");
    return call.result.boolean(true);
}

Status set_theme(void *context, Call &call) {
    of(context).seen_text = std::string(call.args.text("theme"));
    return call.result.boolean(call.args.text("theme") == "light");
}

Status many(void *context, Call &call) {
    McpFixture &f = of(context);
    f.seen = call.args.integer("level");
    f.seen_text = std::string(call.args.text("label")) + (call.args.boolean("on") ? " on" : " off") +
                  (call.args.has("note") ? " noted" : "");
    return {};
}

Status device_status(void *context, Call &call) {
    of(context);
    JsonWriter &w = call.result.begin_json();
    w.begin_object().key("audio_speaker").begin_object().member("volume", 70).end_object().end_object();
    return call.result.end_json();
}

Status count(void *context, Call &call) {
    return call.result.integer(of(context).runs + 41);
}

Status capture(void *context, Call &call) {
    of(context);
    const std::uint8_t jpeg[] = {0xff, 0xd8, 0xff, 0xe0, 0x00};
    return call.result.image("image/jpeg", {jpeg, sizeof jpeg});
}

Status say(void *context, Call &call) {
    of(context);
    return call.result.text("温度 21°C \"ok\"\nline2");
}

Status huge(void *context, Call &call) {
    of(context);
    return call.result.text(std::string(20000, '"'));
}

Status fails(void *context, Call &call) {
    of(context);
    (void)call.result.text("this is taken back");
    return {Code::unavailable, "the lamp does not answer"};
}

Status later(void *context, Call &call) {
    McpFixture &f = of(context);
    Result<Ticket> t = call.defer();
    if (!t.ok()) return t.status();
    f.ticket = t.value();
    return {};
}

Status later_fails(void *context, Call &call) {
    of(context);
    if (Result<Ticket> t = call.defer(); !t.ok()) return t.status();
    if (Result<Ticket> t = call.defer(); t.ok()) return {};
    return {Code::io, "the worker did not start"};
}

Status disrupt(void *context, Call &call) {
    of(context).server.notify("notifications/job", [](JsonWriter &w) { w.member("state", "accepted"); });
    return call.result.boolean(true);
}

void add_all(ToolRegistry &tools, void *context) {
    const struct {
        const ToolInfo &info;
        ToolRun run;
    } list[] = {{status_info, device_status},
                {set_volume_info, set_volume},
                {set_theme_info, set_theme},
                {optional_info, many},
                {count_info, count},
                {capture_info, capture},
                {say_info, say},
                {huge_info, huge},
                {fails_info, fails},
                {later_info, later},
                {later_fails_info, later_fails},
                {reboot_info, disrupt},
                {upgrade_info, disrupt}};
    for (const auto &t : list)
        REQUIRE(tools.add(t.info, t.run, context).ok());
}

}  // namespace

McpFixture::McpFixture(std::size_t page_bytes, const CallRates &rates)
    : server(tools, {"bread-compact-wifi", "2.4.2", page_bytes, rates}, &store, &clock) {
    add_all(tools, this);
    server.set_send([this](std::string_view m) { sent.emplace_back(m); });
}

std::string McpFixture::ask(std::string_view message) {
    const std::size_t before = sent.size();
    Result<Envelope> e = Envelope::parse(message);
    if (!e.ok()) {
        server.refuse_text(e.status());
    } else {
        server.handle(e.value());
    }
    return sent.size() == before ? "" : sent.back();
}

std::string McpFixture::request(std::string_view payload) {
    return ask("{\"type\":\"mcp\",\"scope\":\"operator\",\"payload\":" + std::string(payload) + "}");
}

std::string McpFixture::call(int id, std::string_view name, std::string_view arguments) {
    return request("{\"jsonrpc\":\"2.0\",\"id\":" + std::to_string(id) +
                   ",\"method\":\"tools/call\",\"params\":{\"name\":\"" + std::string(name) +
                   "\",\"arguments\":" + std::string(arguments) + "}}");
}

std::string payload_of(const std::string &message) {
    return std::string(raw_member(message, "payload"));
}

std::string error_of(const std::string &message) {
    Result<JsonDocument> d = JsonDocument::parse(payload_of(message));
    if (!d.ok()) return "not JSON";
    const JsonView error = d.value().root().member("error");
    if (!error.exists()) return "";
    return std::to_string(error.member("code").integer_or(0)) + " " + std::string(error.member("message").text());
}

}  // namespace fleet::test
