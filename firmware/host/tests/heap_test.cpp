// SPDX-License-Identifier: Apache-2.0
// What a request costs: nothing from the heap but the nodes of its own JSON.
#include "fleet/session.hpp"
#include "mcp_fixture.hpp"

#include <cjson/cJSON.h>
#include <doctest/doctest.h>

#include <malloc.h>
#include <cstdlib>
#include <new>

namespace {

// All of the test binary's new and delete go through here; counting is on for a
// few lines only.
bool counting = false;
std::size_t news = 0;
std::size_t json_now = 0;
std::size_t json_peak = 0;

void *json_malloc(std::size_t size) {
    void *p = std::malloc(size);
    json_now += malloc_usable_size(p);
    if (json_now > json_peak) json_peak = json_now;
    return p;
}

void json_free(void *p) {
    json_now -= p ? malloc_usable_size(p) : 0;
    std::free(p);
}

}  // namespace

void *operator new(std::size_t size) {
    if (counting) news++;
    return std::malloc(size);
}
void operator delete(void *p) noexcept {
    std::free(p);
}
void operator delete(void *p, std::size_t) noexcept {
    std::free(p);
}

using namespace fleet;
using namespace fleet::test;

namespace {

struct Hooks {
    Hooks() {
        cJSON_Hooks hooks{json_malloc, json_free};
        cJSON_InitHooks(&hooks);
        json_now = json_peak = news = 0;
    }
    ~Hooks() {
        counting = false;
        cJSON_InitHooks(nullptr);
    }
};

// Counts what is sent, without keeping it.
struct Counted {
    Counted() {
        f.server.set_send([this](std::string_view m) { bytes += m.size(); });
    }
    void receive(std::string_view text) {
        counting = true;
        session.receive(Bytes(text));
        counting = false;
    }
    McpFixture f;
    Session session{f.server};
    std::size_t bytes = 0;
};

const char *const kRequests[] = {
    "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{"
    "\"capabilities\":{}}}}",
    "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/"
    "list\",\"params\":{\"withUserTools\":true}}}",
    "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/"
    "call\",\"params\":{\"name\":\"self.audio_speaker.set_volume\",\"arguments\":{\"volume\":5}}}}",
    "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"tools/"
    "call\",\"params\":{\"name\":\"self.demo.capture\"}}}",
    "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/"
    "call\",\"params\":{\"name\":\"self.demo.later\"}}}",
    "{\"type\":\"mcp\",\"payload\":{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"nope\"}}",
    "{\"type\":\"mcp\",\"payload\":[]}",
    "not JSON",
};

}  // namespace

TEST_SUITE("heap") {
    TEST_CASE("requests take nothing from the heap but their JSON, and give it back") {
        Counted c;
        const Hooks hooks;
        for (const char *r : kRequests)
            c.receive(r);
        CHECK(c.bytes > 1000);
        CHECK(news == 0);
        CHECK(json_now == 0);
        CHECK(json_peak > 0);
        CHECK(json_peak < 4096);
    }

    TEST_CASE("the worst request is bounded before it is parsed") {
        Counted c;
        const Hooks hooks;
        std::string values = "{\"type\":\"mcp\",\"payload\":[0";
        for (int i = 0; i < 240; i++)
            values += ",{}";
        c.receive(values + "]}");
        // 256 nodes of 64 bytes on this machine, of 40 on the device.
        CHECK(json_peak > 10'000);
        CHECK(json_peak < 32 * 1024);
        json_peak = 0;
        c.receive("{\"type\":\"" + std::string(8000, 'x') + "\"}");
        CHECK(json_peak < 12 * 1024);
        json_peak = 0;
        for (int i = 0; i < 200; i++)
            values += ",{}";
        c.receive(values + "]}");
        CHECK(json_peak == 0);
        CHECK(news == 0);
        CHECK(json_now == 0);
    }

    TEST_CASE("no memory is an answer, not a crash") {
        Counted c;
        cJSON_Hooks none{[](std::size_t) -> void * { return nullptr; }, std::free};
        cJSON_InitHooks(&none);
        c.receive(kRequests[0]);
        cJSON_InitHooks(nullptr);
        CHECK(c.bytes > 0);
    }
}
