// SPDX-License-Identifier: Apache-2.0
// What a request costs: nothing from the heap but the nodes of the JSON.
#include "fleet/session.hpp"
#include "fleet/unit.hpp"
#include "machine.hpp"
#include "mcp_fixture.hpp"

#include <cjson/cJSON.h>
#include <doctest/doctest.h>

#include <malloc.h>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// All of the test binary's new and delete go through here; counting is on for a
// few lines only.
std::atomic<bool> counting = false;  // other tests have threads
std::atomic<std::size_t> news = 0;
std::atomic<std::size_t> taken = 0;  // from the heap now, cJSON apart
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
    void *p = std::malloc(size);
    taken += malloc_usable_size(p);
    return p;
}
void operator delete(void *p) noexcept {
    taken -= p ? malloc_usable_size(p) : 0;
    std::free(p);
}
void operator delete(void *p, std::size_t) noexcept {
    operator delete(p);
}
// AddressSanitizer's own would not come by the ones above.
void *operator new[](std::size_t size) {
    return operator new(size);
}
void operator delete[](void *p) noexcept {
    operator delete(p);
}
void operator delete[](void *p, std::size_t) noexcept {
    operator delete(p);
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

// The budgets are those of the device: pointers of 32 bits. Elsewhere the
// figures only have to be of that order.
constexpr bool is_32_bit = sizeof(void *) == 4;
constexpr std::size_t peak_limit = is_32_bit ? 10 * 1024 : 16 * 1024;
constexpr std::size_t rest_limit = is_32_bit ? 12 * 1024 : 16 * 1024;

const char boot_url[] = "https://fleet.example.org/ota";
const char claimed_answer[] = "{\"mqtt\":{\"endpoint\":\"broker:1883\",\"client_id\":\"c\",\"publish_topic\":\"up\"}}";

const char *const some_requests[] = {
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
        for (const char *r : some_requests)
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
        // As many values as are taken, each with another key and another text.
        std::string values = "{\"type\":\"mcp\",\"payload\":{\"0\":\"\"";
        for (int i = 100; i < 215; i++)
            values += ",\"key-" + std::to_string(i) + "\":\"text of some length\"";
        REQUIRE(values.size() < JsonLimits{}.bytes);
        c.receive(values + "}}");
        MESSAGE("worst request: ", json_peak, " bytes");
        CHECK(json_peak > 5'000);
        CHECK(json_peak <= peak_limit);
        json_peak = 0;
        c.receive("{\"type\":\"" + std::string(JsonLimits{}.bytes - 11, 'x') + "\"}");
        CHECK(json_peak > 4'000);
        CHECK(json_peak <= peak_limit);
        json_peak = 0;
        c.receive("{\"type\":\"" + std::string(JsonLimits{}.bytes, 'x') + "\"}");
        for (int i = 0; i < 5; i++)
            values += ",\"k\":1";
        c.receive(values + "}}");
        CHECK(json_peak == 0);
        CHECK(news == 0);
        CHECK(json_now == 0);
    }

    // What the fakes keep is given back before.
    TEST_CASE("a unit at rest takes 12 KB, whatever was asked of it") {
        FakeMachine m;
        m.http.answers[boot_url] = {{200, claimed_answer, false}};
        const Hooks hooks;
        const std::size_t before = taken;
        UnitOptions options;
        options.poll_url = boot_url;
        auto unit = std::make_unique<Unit>(m.machine, options);
        unit->start();
        m.executor.settle();
        m.transport.connect();
        for (const char *r : some_requests)
            m.transport.say(r);
        m.executor.run_for(10'000);
        CHECK(m.transport.sent.size() > 5);
        m.transport.sent = {};
        m.transport.last = {};
        m.http.posted = {};
        m.http.headers.clear();
        m.store.values.clear();
        const std::size_t rest = taken - before;
        MESSAGE("at rest: ", rest, " bytes of the heap, of them ", sizeof(Unit), " the unit itself");
        CHECK(rest >= options.page_bytes + options.outbox_bytes + sizeof(Unit));
        CHECK(rest <= rest_limit);
        CHECK(json_now == 0);
    }

    TEST_CASE("no memory is an answer, not a crash") {
        Counted c;
        cJSON_Hooks none{[](std::size_t) -> void * { return nullptr; }, std::free};
        cJSON_InitHooks(&none);
        c.receive(some_requests[0]);
        cJSON_InitHooks(nullptr);
        CHECK(c.bytes > 0);
    }
}
