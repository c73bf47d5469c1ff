// SPDX-License-Identifier: Apache-2.0
#include "fleet/session.hpp"
#include "mcp_fixture.hpp"
#include "vectors.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

struct SessionFixture {
    SessionFixture() {
        session.on_message = [this] { received++; };
        session.on_reboot = [this] { reboots++; };
        session.on_alert = [this](std::string_view status, std::string_view message) {
            shown = std::string(status) + "|" + std::string(message);
        };
    }
    void say(std::string_view text) { session.receive(Bytes(text)); }
    McpFixture mcp;
    Session session{mcp.server};
    int received = 0;
    int reboots = 0;
    std::string shown;
};

void check_down(JsonView c) {
    SessionFixture f;
    CAPTURE(text_of(c.member("name")));
    const JsonView expect = c.member("expect");
    if (c.member("device_session_id").exists()) {
        f.say(
            "{\"type\":\"hello\",\"session_id\":\"s-7f3a\",\"transport\":\"udp\",\"udp\":{\"server\":\"h\",\"port\":1,"
            "\"key\":\"00112233445566778899aabbccddeeff\",\"nonce\":\"00112233445566778899aabbccddeeff\"}}");
        REQUIRE(f.session.channel_open());
    }
    f.say(c.member("wire").text());
    if (expect.member("device_accepts").exists()) {
        CHECK(f.session.channel_open() == expect.member("device_accepts").is_true());
    }
    if (expect.member("session_id").exists()) CHECK(f.mcp.server.session_id() == expect.member("session_id").text());
    if (expect.member("device_closes_channel").exists()) {
        CHECK(f.session.channel_open() != expect.member("device_closes_channel").is_true());
        CHECK(f.mcp.sent.empty());
    }
    CHECK((f.reboots == 1) == expect.member("device_reboots").is_true());
    CHECK(!f.shown.empty() == expect.member("device_shows").is_true());
}

}  // namespace

TEST_SUITE("session") {
    TEST_CASE("the messages that stock servers send") {
        const JsonDocument doc = load_vectors("hello.json");
        int checked = 0;
        for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next()) {
            if (c.member("dir").text() != "down" || c.member("transport").text() != "mqtt") continue;
            check_down(c);
            checked++;
        }
        CHECK(checked > 10);
    }

    TEST_CASE("replies carry the session id, even a stale one") {
        SessionFixture f;
        const char ping[] = "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}}";
        f.mcp.server.set_session_id("s-1\"");
        f.say(ping);
        CHECK(f.mcp.sent.back().find("{\"session_id\":\"s-1\\\"\",\"type\":\"mcp\"") == 0);
        f.mcp.server.set_session_id(std::string(500, 'x'));
        f.say(ping);
        CHECK(f.mcp.sent.back().size() < 250);
        CHECK(f.received == 2);
    }

    TEST_CASE("anything else is survived") {
        SessionFixture f;
        for (const char *text :
             {"{\"type\":\"tts\",\"state\":\"start\"}", "{\"type\":\"system\",\"command\":\"format\"}",
              "{\"type\":\"system\"}", "{\"type\":\"iot\"}", "{\"type\":\"alert\"}",
              "{\"type\":\"alert\",\"status\":1,\"message\":\"m\",\"emotion\":\"e\"}",
              "{\"type\":\"alert\",\"status\":\"s\",\"message\":1,\"emotion\":\"e\"}",
              "{\"type\":\"alert\",\"status\":\"s\",\"message\":\"m\",\"emotion\":1}"}) {
            f.say(text);
        }
        CHECK(f.mcp.sent.empty());
        CHECK(f.shown.empty());
        f.say(std::string(9000, ' '));
        CHECK(error_of(f.mcp.sent.back()) == "-32700 message is too long");
        f.say("");
        CHECK(f.mcp.sent.size() == 2);
        CHECK(f.reboots == 0);
    }
}
