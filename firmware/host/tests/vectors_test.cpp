// SPDX-License-Identifier: Apache-2.0
// The exchanges of stock devices, answered by this core. Where it answers
// otherwise, the table below says how and why; every entry of it is used.
#include "vectors.hpp"
#include "mcp_fixture.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>

using namespace fleet;
using namespace fleet::test;

namespace {

// The same as the reply of a stock device, byte for byte, is the rule.
struct Difference {
    const char *name;
    const char *payload;  // all of it from "id" on, without the last bracket
    const char *why;
};

const Difference differences[] = {
    {"ping is not implemented, usable as probe", "\"id\":3,\"result\":{}", "ping is part of MCP"},
    {"int", "\"id\":53,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"42\"}],\"isError\":false}", "same"},
    {"image, device quirk (JSON string under 'image')",
     "\"id\":55,\"result\":{\"content\":[{\"type\":\"image\",\"data\":\"/9j/4AA=\",\"mimeType\":\"image/"
     "jpeg\"}],\"isError\":false}",
     "images as MCP defines them"},
    {"image, standard MCP form (accept too)",
     "\"id\":56,\"result\":{\"content\":[{\"type\":\"image\",\"data\":\"/9j/4AA=\",\"mimeType\":\"image/"
     "jpeg\"}],\"isError\":false}",
     "the fixture's picture is another"},
    {"string with JSON inside",
     "\"id\":52,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"{\\\"audio_speaker\\\":{\\\"volume\\\":70}}\"}],"
     "\"isError\":false}",
     "the fixture's status is shorter"},
    {"arguments key absent",
     "\"id\":54,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"{\\\"audio_speaker\\\":{\\\"volume\\\":70}}\"}],"
     "\"isError\":false}",
     "the fixture's status is shorter"},
    {"unknown tool", "\"id\":58,\"error\":{\"code\":-32602,\"message\":\"Unknown tool: self.nope\"}",
     "errors carry a code"},
    {"missing argument", "\"id\":59,\"error\":{\"code\":-32602,\"message\":\"Missing valid argument: volume\"}",
     "errors carry a code"},
    {"argument of wrong type counts as missing",
     "\"id\":60,\"error\":{\"code\":-32602,\"message\":\"Argument volume must be an integer\"}", "says what is wrong"},
    {"above maximum",
     "\"id\":61,\"error\":{\"code\":-32602,\"message\":\"Argument volume is above its maximum of 100\"}",
     "names the argument"},
    {"below minimum", "\"id\":62,\"error\":{\"code\":-32602,\"message\":\"Argument volume is below its minimum of 0\"}",
     "names the argument"},
    {"fraction is truncated to 50",
     "\"id\":63,\"error\":{\"code\":-32602,\"message\":\"Argument volume must be an integer\"}",
     "a fraction is refused"},
    {"arguments not an object", "\"id\":64,\"error\":{\"code\":-32602,\"message\":\"Invalid arguments\"}",
     "errors carry a code"},
    {"no params", "\"id\":65,\"error\":{\"code\":-32602,\"message\":\"Missing params\"}", "errors carry a code"},
    {"no name", "\"id\":66,\"error\":{\"code\":-32602,\"message\":\"Missing name\"}", "errors carry a code"},
    {"reboot: never answered (>= 2.1.0), then DISCONNECT",
     "\"id\":67,\"error\":{\"code\":-32001,\"message\":\"Operator scope needed to call self.reboot\"}",
     "user-only tools are guarded"},
    {"upgrade succeeded: never answered (>= 2.1.0)",
     "\"id\":68,\"error\":{\"code\":-32001,\"message\":\"Operator scope needed to call self.upgrade_firmware\"}",
     "user-only tools are guarded"},
    {"upgrade FAILED: late true (>= 2.1.0)",
     "\"id\":69,\"error\":{\"code\":-32001,\"message\":\"Operator scope needed to call self.upgrade_firmware\"}",
     "user-only tools are guarded"},
    {"upgrade on firmware <= 2.0.x: early true",
     "\"id\":70,\"error\":{\"code\":-32001,\"message\":\"Operator scope needed to call self.upgrade_firmware\"}",
     "user-only tools are guarded"},
    {"snapshot upload refused by our server with 403",
     "\"id\":71,\"error\":{\"code\":-32602,\"message\":\"Unknown tool: self.screen.snapshot\"}",
     "not a tool of the fixture"},
    // malformed.json: where a stock device is silent, this one says what is wrong.
    {"string id", "\"id\":\"1\",\"result\":", "any id is echoed"},
    {"no id", "\"id\":null,\"error\":{\"code\":-32600,\"message\":\"The request has no id\"}", "answered"},
    {"null id", "\"id\":null,\"error\":{\"code\":-32600,\"message\":\"The id is neither a string nor an integer\"}",
     "answered"},
    {"params null", "\"id\":1,\"error\":{\"code\":-32602,\"message\":\"params is not an object\"}", "answered"},
    {"params array", "\"id\":1,\"error\":{\"code\":-32602,\"message\":\"params is not an object\"}", "answered"},
    {"jsonrpc number", "\"id\":1,\"error\":{\"code\":-32600,\"message\":\"jsonrpc is not \\\"2.0\\\"\"}", "answered"},
    {"no jsonrpc", "\"id\":1,\"error\":{\"code\":-32600,\"message\":\"jsonrpc is not \\\"2.0\\\"\"}", "answered"},
    {"batch", "\"id\":null,\"error\":{\"code\":-32600,\"message\":\"The payload is not an object\"}", "answered"},
    {"payload is a string", "\"id\":null,\"error\":{\"code\":-32600,\"message\":\"The payload is not an object\"}",
     "answered"},
    {"bare JSON-RPC without envelope", "\"id\":null,\"error\":{\"code\":-32700,\"message\":\"message has no type\"}",
     "answered"},
    {"id over int32 is answered with 2147483647", "\"id\":4294967296,\"result\":{}", "any id is echoed"},
    {"fractional id is cut",
     "\"id\":null,\"error\":{\"code\":-32600,\"message\":\"The id is neither a string nor an integer\"}", "refused"},
    {"withUserTools as number: ignored", "\"id\":1,\"result\":{\"tools\":[{\"name\":\"self.get_device_status\"",
     "same"},
};

const Difference *difference(const std::string &name) {
    for (const Difference &d : differences) {
        if (name == d.name) return &d;
    }
    return nullptr;
}

void check_reply(const std::string &name, const std::string &got, JsonView stock) {
    const Difference *d = difference(name);
    if (!d) {
        CHECK_MESSAGE(payload_of(got) == payload_of(text_of(stock)), name);
        return;
    }
    const std::string want = "{\"jsonrpc\":\"2.0\"," + std::string(d->payload);
    CHECK_MESSAGE(payload_of(got).substr(0, want.size()) == want, name << ": " << got);
}

void check_requests(const char *file) {
    const JsonDocument doc = load_vectors(file);
    McpFixture f;
    for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next()) {
        f.runs = 0;
        check_reply(text_of(c.member("name")), f.ask(c.member("request").text()), c.member("reply"));
    }
}

// VectorTools rebuilds tools from a stock device's listing.
struct VectorTools {
    struct Kept {
        std::string name, description;
        std::vector<std::string> texts;
        std::vector<Property> properties;
        ToolInfo info;
    };

    const char *keep(Kept &k, std::string_view text) {
        k.texts.emplace_back(text);
        return k.texts.back().c_str();
    }

    Property property(Kept &k, JsonView v, JsonView required) {
        const std::string_view type = v.member("type").text();
        const char *name = keep(k, v.key());
        Property p = type == "boolean"   ? Property::Bool(name)
                     : type == "integer" ? Property::Int(name)
                                         : Property::Text(name);
        const JsonView fallback = v.member("default");
        if (fallback.is_string()) {
            p = p.DefaultText(keep(k, fallback.text()));
        } else if (fallback.exists()) {
            p = p.Default(fallback.is_bool() ? fallback.is_true() : fallback.integer_or(0));
        }
        if (v.member("minimum").exists())
            p = p.Range(v.member("minimum").integer_or(0), v.member("maximum").integer_or(0));
        for (JsonView r = required.first(); r.exists(); r = r.next()) {
            if (r.text() == v.key()) p = p.Required();
        }
        return p;
    }

    void add(JsonView tool) {
        auto k = std::make_unique<Kept>();
        k->texts.reserve(32);
        k->name = text_of(tool.member("name"));
        k->description = text_of(tool.member("description"));
        const JsonView schema = tool.member("inputSchema");
        for (JsonView v = schema.member("properties").first(); v.exists(); v = v.next()) {
            k->properties.push_back(property(*k, v, schema.member("required")));
        }
        k->info = ToolInfo(k->name.c_str(), k->description.c_str());
        k->info.properties = k->properties.data();
        k->info.property_count = k->properties.size();
        if (tool.member("annotations").exists()) k->info = k->info.UserOnly();
        REQUIRE(registry.add(k->info, nullptr, nullptr).ok());
        kept.push_back(std::move(k));
    }

    void add_page(const std::string &reply) {
        const JsonDocument doc = std::move(JsonDocument::parse(reply, {1 << 20, 16, 5000}).value());
        const JsonView tools = doc.root().member("payload").member("result").member("tools");
        for (JsonView t = tools.first(); t.exists(); t = t.next()) {
            if (!registry.find(t.member("name").text())) add(t);
        }
    }

    std::vector<std::unique_ptr<Kept>> kept;
    ToolRegistry registry;
};

void check_pages(JsonView pages) {
    auto tools = std::make_unique<VectorTools>();
    for (JsonView p = pages.first(); p.exists(); p = p.next())
        tools->add_page(text_of(p.member("reply")));
    McpServer server(tools->registry, {"b", "v", 8000, {}}, nullptr, nullptr);
    std::string reply;
    server.set_send([&](std::string_view m) { reply = std::string(m); });
    for (JsonView p = pages.first(); p.exists(); p = p.next()) {
        Result<Envelope> e = Envelope::parse(p.member("request").text());
        REQUIRE(e.ok());
        server.handle(e.value());
        CHECK(reply == text_of(p.member("reply")));
    }
}

}  // namespace

TEST_SUITE("vectors") {
    TEST_CASE("initialize") {
        check_requests("initialize.json");
    }

    TEST_CASE("tools/call") {
        check_requests("tools_call.json");
    }

    TEST_CASE("malformed requests") {
        const JsonDocument doc = load_vectors("malformed.json");
        McpFixture f;
        for (JsonView c = doc.root().member("down").first(); c.exists(); c = c.next()) {
            check_reply(text_of(c.member("name")), f.ask(c.member("wire").text()), {});
        }
        CHECK(f.runs == 0);
    }

    TEST_CASE("notifications get no reply") {
        const JsonDocument doc = load_vectors("notification.json");
        McpFixture f;
        for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next()) {
            if (c.member("dir").text() == "down") CHECK(f.ask(c.member("wire").text()) == "");
        }
    }

    TEST_CASE("pages are cut where a stock device cuts them, to the byte") {
        const JsonDocument doc = load_vectors("tools_list_paged.json");
        int checked = 0;
        for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next()) {
            // An unknown cursor and a tool larger than a page read otherwise here:
            // see the unit tests.
            const std::string first = text_of(c.member("pages").first().member("reply"));
            const bool asked = c.member("pages").first().member("request").exists();
            if (!asked || first.find("\"error\"") != std::string::npos) continue;
            CAPTURE(text_of(c.member("name")));
            check_pages(c.member("pages"));
            checked++;
        }
        CHECK(checked == 3);
    }
}
