// SPDX-License-Identifier: Apache-2.0
// What stock firmware gets wrong, each point a case here, and the rest.
#include "mcp_fixture.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

bool has(const std::string &text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

const char list_request[] =
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{\"withUserTools\":true}}";

}  // namespace

TEST_SUITE("mcp") {
    TEST_CASE("1: user-only tools need an operator's scope to be called") {
        McpFixture f;
        const std::string payload =
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/"
            "call\",\"params\":{\"name\":\"self.reboot\",\"arguments\":{}}}";
        CHECK(error_of(f.ask("{\"type\":\"mcp\",\"payload\":" + payload + "}")) ==
              "-32001 Operator scope needed to call self.reboot");
        CHECK(error_of(f.ask("{\"type\":\"mcp\",\"scope\":\"model\",\"payload\":" + payload + "}")) != "");
        CHECK(error_of(f.ask("{\"type\":\"mcp\",\"scope\":1,\"payload\":" + payload + "}")) != "");
        CHECK(f.runs == 0);
        CHECK(error_of(f.request(payload)) == "");
        CHECK(f.runs == 1);
    }

    TEST_CASE("1: a scope inside the payload is not the server's") {
        McpFixture f;
        CHECK(error_of(
                  f.ask("{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":1,\"scope\":\"operator\",\"method\":"
                        "\"tools/call\",\"params\":{\"name\":\"self.reboot\",\"scope\":\"operator\"}}}")) != "");
        CHECK(f.runs == 0);
    }

    TEST_CASE("2: errors carry a code, and text that is valid JSON") {
        McpFixture f;
        CHECK(error_of(f.call(1, "a\\\"b\\n")) == "-32602 Unknown tool: a\"b\n");
        CHECK(error_of(f.request("{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"no\\\\pe\"}")) ==
              "-32601 Method not implemented: no\\pe");
        CHECK(has(f.ask("{\"type\""), "\"id\":null,\"error\":{\"code\":-32700"));
        CHECK(has(error_of(f.request("{\"jsonrpc\":\"1.0\",\"id\":3,\"method\":\"ping\"}")), "-32600"));
        CHECK(error_of(f.call(4, std::string(500, 'x'))) == "-32602 Unknown tool: " + std::string(128, 'x'));
    }

    TEST_CASE("3: ids come back as they were written") {
        McpFixture f;
        for (const char *id : {"\"1\"", "9223372036854775807", "-5", "4294967296", "\"\\u00e9\\\"\"", "0"}) {
            const std::string reply =
                f.request("{\"jsonrpc\":\"2.0\",\"id\":" + std::string(id) + ",\"method\":\"ping\"}");
            CHECK(has(reply, "\"id\":" + std::string(id) + ",\"result\":{}"));
        }
    }

    TEST_CASE("3: a bad request with an id is answered") {
        McpFixture f;
        const struct {
            const char *payload, *want;
        } cases[] = {
            {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":null}", "-32602"},
            {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{\"cursor\":5}}", "-32602"},
            {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":[1]}", "-32602"},
            {"{\"jsonrpc\":2.0,\"id\":1,\"method\":\"ping\"}", "-32600"},
            {"{\"id\":1,\"method\":\"ping\"}", "-32600"},
            {"{\"jsonrpc\":\"2.0\",\"id\":1}", "-32600"},
            {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", "-32600"},
            {"{\"jsonrpc\":\"2.0\",\"method\":\"ping\"}", "-32600"},
            {"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", "-32600"},
            {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", "-32600"},
            {"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}", "-32600"},
            {"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", "-32600"},
            {"\"{}\"", "-32600"},
            {"null", "-32600"},
        };
        for (const auto &c : cases)
            CHECK_MESSAGE(has(error_of(f.request(c.payload)), c.want), c.payload);
        CHECK(error_of(f.call(9, "self.screen.set_theme", "{\"theme\":\"0123456789abcdef\"}")) == "");
        const std::string long_id(McpServer::max_id, '1');
        CHECK(has(f.request("{\"jsonrpc\":\"2.0\",\"id\":1" + long_id + ",\"method\":\"ping\"}"),
                  "\"id\":null,\"error\""));
    }

    TEST_CASE("4: wrong, fractional and unknown arguments are refused by name") {
        McpFixture f;
        const struct {
            const char *tool, *arguments, *want;
        } cases[] = {
            {"self.audio_speaker.set_volume", "{}", "Missing valid argument: volume"},
            {"self.audio_speaker.set_volume", "{\"Volume\":5}", "Missing valid argument: volume"},
            {"self.audio_speaker.set_volume", "{\"volume\":\"5\"}", "Argument volume must be an integer"},
            {"self.audio_speaker.set_volume", "{\"volume\":1.9}", "Argument volume must be an integer"},
            {"self.audio_speaker.set_volume", "{\"volume\":null}", "Argument volume must be an integer"},
            {"self.audio_speaker.set_volume", "{\"volume\":101}", "Argument volume is above its maximum of 100"},
            {"self.audio_speaker.set_volume", "{\"volume\":-1}", "Argument volume is below its minimum of 0"},
            {"self.audio_speaker.set_volume", "{\"volume\":5,\"x\\\"\":1}", "Unknown argument: x\""},
            {"self.demo.many", "{\"on\":1}", "Argument on must be a boolean"},
            {"self.demo.many", "{\"level\":\"high\"}", "Argument level must be an integer"},
            {"self.demo.many", "{\"label\":false}", "Argument label must be a string"},
            {"self.screen.set_theme", "{\"theme\":\"0123456789abcdefg\"}", "Argument theme is longer in bytes than 16"},
            {"self.reboot", "{\"now\":true}", "Unknown argument: now"},
            {"self.reboot", "[1]", "Invalid arguments"},
            {"self.reboot", "null", "Invalid arguments"},
        };
        for (const auto &c : cases)
            CHECK(error_of(f.call(1, c.tool, c.arguments)) == std::string("-32602 ") + c.want);
        CHECK(f.runs == 0);
    }

    TEST_CASE("4: defaults, and arguments that are given") {
        McpFixture f;
        CHECK(error_of(f.call(1, "self.demo.many")) == "");
        CHECK(f.seen == 7);
        CHECK(f.seen_text == "a on");
        CHECK(error_of(f.call(2, "self.demo.many", "{\"on\":false,\"level\":9,\"label\":\"b\",\"note\":\"\"}")) == "");
        CHECK(f.seen == 9);
        CHECK(f.seen_text == "b off noted");
    }

    TEST_CASE("5: a description is not a default") {
        McpFixture f;
        const std::string listed = f.request(list_request);
        CHECK(has(listed,
                  "\"url\":{\"type\":\"string\",\"description\":\"where the image is\"}},\"required\":[\"url\"]"));
        CHECK(has(listed, "\"on\":{\"type\":\"boolean\",\"default\":true,\"description\":\"whether\"}"));
        CHECK(error_of(f.call(1, "self.upgrade_firmware")) == "-32602 Missing valid argument: url");
    }

    TEST_CASE("6: the same request twice runs once and is answered twice") {
        McpFixture f;
        const std::string first = f.call(7, "self.demo.count");
        CHECK(has(first, "\"text\":\"42\""));
        CHECK(f.call(7, "self.demo.count") == first);
        CHECK(f.runs == 1);
        CHECK(has(f.call(8, "self.demo.count"), "\"text\":\"43\""));
        CHECK(has(f.call(7, "self.demo.many"), "\"true\""));  // same id, other call
        CHECK(f.runs == 3);
    }

    TEST_CASE("6: sixteen requests are remembered, not more") {
        McpFixture f;
        for (int id = 1; id <= 17; id++)
            f.call(id, "self.demo.count");
        f.call(2, "self.demo.count");
        CHECK(f.runs == 17);
        f.call(1, "self.demo.count");
        CHECK(f.runs == 18);
    }

    TEST_CASE("6: an answered request is remembered for ten minutes, an open one as long as it runs") {
        McpFixture f;
        f.call(7, "self.demo.count");
        f.clock.us += 599LL * 1'000'000;
        f.call(7, "self.demo.count");
        CHECK(f.runs == 1);
        f.clock.us += 2LL * 1'000'000;
        CHECK(has(f.call(7, "self.demo.count"), "\"text\":\"43\""));
        CHECK(f.runs == 2);
        CHECK(has(f.call(7, "self.demo.count"), "\"text\":\"43\""));  // of the second run
        CHECK(f.runs == 2);
    }

    TEST_CASE("6: what only reads runs again") {
        McpFixture f;
        f.call(1, "self.get_device_status");
        f.call(1, "self.get_device_status");
        CHECK(f.runs == 2);
    }

    TEST_CASE("6: an answer too long to keep is not made up") {
        McpFixture f;
        CHECK(has(f.call(1, "self.demo.huge"), "no_space: the result is longer"));
        CHECK(error_of(f.call(1, "self.demo.huge")) == "-32603 Already run; its answer is not kept: self.demo.huge");
        CHECK(f.runs == 1);
    }

    TEST_CASE("6: a reboot redelivered after the restart does not run again") {
        McpFixture f;
        f.call(9, "self.reboot");
        McpFixture after;
        after.store.values = f.store.values;
        after.clock.us = 5'000'000;
        CHECK(has(after.call(9, "self.reboot"), "already run, before the restart"));
        CHECK(after.runs == 0);
        after.clock.us = 10LL * 60 * 1'000'000;  // the last moment
        CHECK(has(after.call(9, "self.reboot"), "already run, before the restart"));
        after.call(10, "self.reboot");
        CHECK(after.runs == 1);
    }

    TEST_CASE("6: much later the same bytes are a new wish") {
        McpFixture f;
        f.call(9, "self.reboot");
        McpFixture after;
        after.store.values = f.store.values;
        after.clock.us = 11LL * 60 * 1'000'000;
        after.call(9, "self.reboot");
        CHECK(after.runs == 1);
    }

    TEST_CASE("6: a store that is full does not keep a device from restarting") {
        McpFixture f;
        f.store.full = true;
        CHECK(error_of(f.call(1, "self.reboot")) == "");
        CHECK(f.runs == 1);
    }

    TEST_CASE("7: a tool may notify while it writes its result") {
        McpFixture f;
        CHECK(has(f.call(1, "self.reboot"), "\"text\":\"true\""));
        REQUIRE(f.sent.size() == 2);
        CHECK(f.sent[0] ==
              "{\"session_id\":\"\",\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"method\":\"notifications/"
              "job\",\"params\":{\"state\":\"accepted\"}}}");
    }

    TEST_CASE("8: pages keep to their limit and join to the whole list") {
        McpFixture f(2560);
        CHECK_FALSE(has(f.request(list_request), "nextCursor"));
        static constexpr ToolInfo more_tools[] = {
            {"self.more.0",
             "Long text to fill the page, again and again, until it no longer fits on a single one of them."},
            {"self.more.1",
             "Long text to fill the page, again and again, until it no longer fits on a single one of them."},
            {"self.more.2",
             "Long text to fill the page, again and again, until it no longer fits on a single one of them."},
            {"self.more.3",
             "Long text to fill the page, again and again, until it no longer fits on a single one of them."},
        };
        for (const ToolInfo &t : more_tools)
            REQUIRE(f.tools.add(t, nullptr, nullptr).ok());
        const std::string first = f.request(list_request);
        CHECK(first.size() < 2560 + 512);
        REQUIRE(has(first, "\"nextCursor\":\"self.more."));
        const std::size_t at = first.find("\"nextCursor\":\"") + 14;
        const std::string cursor = first.substr(at, 11);
        const std::string second = f.request(
            "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\",\"params\":{\"withUserTools\":true,\"cursor\":\"" +
            cursor + "\"}}");
        CHECK(has(second, "{\"tools\":[{\"name\":\"" + cursor));
        CHECK(has(second, "self.more.3"));
        CHECK_FALSE(has(second, "nextCursor"));
        CHECK(error_of(f.request(
                  "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}")) ==
              "-32602 Unknown cursor: x");
    }

    TEST_CASE("calls are limited: a burst, then ten a second") {
        McpFixture f(8000, {10, 20, 10});
        for (int id = 1; id <= 20; id++)
            CHECK(error_of(f.call(id, "self.demo.count")) == "");
        CHECK(error_of(f.call(21, "self.get_device_status")) == "-32002 too many calls");
        CHECK(f.runs == 20);
        CHECK(error_of(f.call(20, "self.demo.count")) == "");  // a repetition costs nothing
        f.clock.us += 100'000;
        CHECK(error_of(f.call(22, "self.demo.count")) == "");
        CHECK(error_of(f.call(23, "self.demo.count")) == "-32002 too many calls");
        f.clock.us += 60'000'000;  // a pause fills up no more than the burst
        for (int id = 100; id < 120; id++)
            CHECK(error_of(f.call(id, "self.demo.count")) == "");
        CHECK(error_of(f.call(120, "self.demo.count")) == "-32002 too many calls");
        CHECK(error_of(f.request("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}")) == "");
    }

    TEST_CASE("calls that restart the device are limited on their own") {
        McpFixture f(8000, {10, 20, 10});
        CHECK(error_of(f.call(1, "self.reboot")) == "");
        CHECK(error_of(f.call(2, "self.reboot")) == "-32002 too many calls");
        CHECK(error_of(f.call(3, "self.upgrade_firmware", "{\"url\":\"http://h/x\"}")) == "-32002 too many calls");
        CHECK(error_of(f.call(4, "self.demo.count")) == "");
        f.clock.us += 10'000'000;
        CHECK(error_of(f.call(5, "self.reboot")) == "");
        CHECK(f.runs == 3);
    }

    TEST_CASE("user tools are listed on demand only") {
        McpFixture f;
        CHECK(has(f.request(list_request), "self.reboot"));
        CHECK(has(f.request(list_request), "\"annotations\":{\"audience\":[\"user\"]}"));
        const std::string plain = f.request("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}");
        CHECK_FALSE(has(plain, "self.reboot"));
        CHECK(has(plain, "self.demo.say"));
    }

    TEST_CASE("images are what MCP says") {
        McpFixture f;
        CHECK(has(f.call(1, "self.demo.capture"),
                  "{\"content\":[{\"type\":\"image\",\"data\":\"/9j/4AA=\",\"mimeType\":\"image/"
                  "jpeg\"}],\"isError\":false}"));
    }

    TEST_CASE("a failed tool says so") {
        McpFixture f;
        CHECK(has(
            f.call(1, "self.demo.fails"),
            "{\"content\":[{\"type\":\"text\",\"text\":\"unavailable: the lamp does not answer\"}],\"isError\":true}"));
    }

    TEST_CASE("a deferred call is answered once, with its own id") {
        McpFixture f;
        CHECK(f.call(5, "self.demo.later") == "");
        CHECK(f.server.open_calls() == 1);
        CHECK(f.call(5, "self.demo.later") == "");  // a redelivery waits for the first
        CHECK(f.runs == 1);
        const Ticket t = f.ticket;
        f.call(6, "self.get_device_status");
        f.server.finish(t, [](ToolResult &r) { return r.text("done"); });
        CHECK(has(f.sent.back(),
                  "\"id\":5,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}],\"isError\":false}"));
        const std::size_t n = f.sent.size();
        f.server.finish(t, [](ToolResult &r) { return r.text("again"); });
        f.server.finish({9, 1}, [](ToolResult &r) { return r.text("no such slot"); });
        CHECK(f.sent.size() == n);
        CHECK(has(f.call(5, "self.demo.later"), "\"done\""));
        CHECK(f.runs == 2);
    }

    TEST_CASE("a deferred answer of any length leaves whole, or says that it is too long") {
        McpFixture f(2560);
        int whole = 0, refused = 0;
        for (std::size_t size = 2700; size < 3072; size++) {
            REQUIRE(f.call(static_cast<int>(size), "self.demo.later") == "");
            const std::size_t sent = f.sent.size();
            f.server.finish(f.ticket, [size](ToolResult &r) { return r.text(std::string(size, 'x')); });
            REQUIRE(f.sent.size() == sent + 1);
            REQUIRE(f.sent.back().size() <= 2560 + 512);
            REQUIRE(JsonDocument::parse(f.sent.back()).ok());
            has(f.sent.back(), "no_space") ? refused++ : whole++;
        }
        CHECK(whole > 100);
        CHECK(refused > 10);
    }

    TEST_CASE("four calls may be open") {
        McpFixture f;
        for (int id = 1; id <= 4; id++)
            CHECK(f.call(id, "self.demo.later") == "");
        CHECK(has(f.call(5, "self.demo.later"), "busy: too many calls are under way"));
        f.server.finish(f.ticket, [](ToolResult &) { return Status{Code::timeout, "no answer"}; });
        CHECK(has(f.sent.back(), "timeout: no answer"));
        CHECK(f.call(6, "self.demo.later") == "");
    }

    TEST_CASE("a tool that defers and then fails is answered at once") {
        McpFixture f;
        CHECK(has(f.call(1, "self.demo.later_fails"), "io: the worker did not start"));
        CHECK(f.server.open_calls() == 0);
    }

    TEST_CASE("defer outside of a call is refused") {
        McpFixture f;
        char buffer[64];
        JsonWriter w(buffer, sizeof buffer);
        ToolResult result(w);
        Arguments args;
        Call call{args, result, false, f.server, false, {}};
        CHECK(call.defer().status().code == Code::invalid);
    }

    TEST_CASE("the registry refuses what could not be served") {
        static ToolRegistry tools;
        static const std::string long_text(3000, 'x');
        static const std::string long_name(200, 'x');
        const ToolInfo wide("self.wide", long_text.c_str());
        const ToolInfo named(long_name.c_str(), "");
        const ToolInfo once("self.once", "");
        CHECK(tools.add(wide, nullptr, nullptr).code == Code::no_space);
        CHECK(tools.add(named, nullptr, nullptr).code == Code::invalid);
        ToolInfo stuffed("self.stuffed", "");
        stuffed.property_count = max_properties + 1;
        CHECK(tools.add(stuffed, nullptr, nullptr).code == Code::invalid);
        CHECK(tools.add(once, nullptr, nullptr).ok());
        CHECK(tools.add(once, nullptr, nullptr).code == Code::busy);
        static std::string names[ToolRegistry::max_tools];
        static ToolInfo infos[ToolRegistry::max_tools];
        for (std::size_t i = 1; i <= ToolRegistry::max_tools; i++) {
            ToolInfo &info = infos[i - 1];
            names[i - 1] = "t" + std::to_string(i);
            info.name = names[i - 1].c_str();
            CHECK(tools.add(info, nullptr, nullptr).ok() == (i < ToolRegistry::max_tools));
        }
    }

    TEST_CASE("an argument that a tool does not declare reads as nothing") {
        Arguments args;
        CHECK_FALSE(args.check(ToolInfo("x", ""), {}).refused());
        CHECK_FALSE(args.has("no"));
        CHECK_FALSE(args.boolean("no"));
        CHECK(args.integer("no") == 0);
        CHECK(args.text("no").empty());
    }
}
