// SPDX-License-Identifier: Apache-2.0
#include "fakes.hpp"
#include "fleet/config_store.hpp"
#include "fleet/unit_config.hpp"

#include <doctest/doctest.h>

#include <iterator>

using namespace fleet;
using namespace fleet::test;

namespace {

constexpr std::int64_t config_trial_us = 120'000'000;

struct Config {
    explicit Config(FakeStore &s) : store(unit_config_fields, std::size(unit_config_fields), s) {
        store.on_change = [this] { changes++; };
        store.load();
    }
    // propose gives the refusal as text, "" if taken.
    std::string propose(const char *json, std::int64_t now_us = 0) {
        const Result<JsonDocument> d = JsonDocument::parse(json);
        const Refusal r = store.propose(d.value().root(), now_us + config_trial_us);
        if (!r.refused()) return "";
        return std::string(r.before) + std::string(r.name) + r.after + (r.with_bound ? std::to_string(r.bound) : "");
    }
    std::string written() const {
        char buffer[1024];
        JsonWriter w(buffer, sizeof buffer);
        store.write(w);
        return std::string(w.view());
    }
    ConfigStore store;
    int changes = 0;
};

}  // namespace

TEST_SUITE("config") {
    TEST_CASE("defaults, then values, then defaults again") {
        FakeStore store;
        Config c(store);
        CHECK(c.store.integer("heartbeat_s") == 60);
        CHECK(c.store.boolean("telemetry"));
        CHECK(c.propose(
                  "{\"version\":1,\"values\":{\"heartbeat_s\":30,\"log_level\":\"debug\",\"telemetry\":false}}") == "");
        CHECK(c.store.integer("heartbeat_s") == 30);
        CHECK(c.store.text("log_level") == "debug");
        CHECK_FALSE(c.store.boolean("telemetry"));
        CHECK(c.propose("{\"version\":2,\"values\":{\"heartbeat_s\":null}}") == "");
        CHECK(c.store.integer("heartbeat_s") == 60);
        CHECK(c.store.text("log_level") == "debug");
        CHECK(store.values["s:config_trial"].find("heartbeat_s") == std::string::npos);  // defaults are not stored
        CHECK(c.written() ==
              "{\"version\":2,\"on_trial\":true,\"reverted\":0,\"values\":{\"heartbeat_s\":60,\"telemetry\":false,"
              "\"log_level\":\"debug\",\"url_hosts\":\"\",\"allow_http\":false}}");
    }

    TEST_CASE("a bad document changes nothing") {
        FakeStore store;
        Config c(store);
        const struct {
            const char *json, *want;
        } cases[] = {
            {"{}", "The configuration has no version"},
            {"[]", "The configuration has no version"},
            {"{\"version\":1.5,\"values\":{}}", "The configuration has no version"},
            {"{\"version\":0,\"values\":{}}", "The configuration has no version"},
            {"{\"version\":1}", "The configuration's values are no object"},
            {"{\"version\":1,\"values\":[]}", "The configuration's values are no object"},
            {"{\"version\":1,\"values\":{\"heartbeat_s\":30,\"nope\":1}}", "Unknown setting: nope"},
            {"{\"version\":1,\"values\":{\"heartbeat_s\":9}}", "Argument heartbeat_s is below its minimum of 10"},
            {"{\"version\":1,\"values\":{\"heartbeat_s\":\"9\"}}", "Argument heartbeat_s must be an integer"},
            {"{\"version\":1,\"values\":{\"log_level\":\"123456789\"}}",
             "Argument log_level is longer in bytes than 8"},
        };
        for (const auto &t : cases)
            CHECK(c.propose(t.json) == t.want);
        CHECK(c.store.version() == 0);
        CHECK(c.store.integer("heartbeat_s") == 60);
        CHECK(c.changes == 0);
        CHECK(store.values.empty());
    }

    TEST_CASE("a version is taken once, and never an older one") {
        FakeStore store;
        Config c(store);
        CHECK(c.propose("{\"version\":5,\"values\":{}}") == "");
        CHECK(c.propose("{\"version\":5,\"values\":{}}") == "The configuration is not newer than version 5");
        CHECK(c.propose("{\"version\":4,\"values\":{}}") == "The configuration is not newer than version 5");
    }

    TEST_CASE("confirmed when the broker is there at the end of the trial") {
        FakeStore store;
        Config c(store);
        c.propose("{\"version\":1,\"values\":{\"heartbeat_s\":30}}", 1000);
        c.store.tick(config_trial_us, false);
        CHECK(c.store.on_trial());
        c.store.tick(1000 + config_trial_us, true);
        CHECK_FALSE(c.store.on_trial());
        CHECK(c.changes == 2);
        Config after(store);
        CHECK(after.store.integer("heartbeat_s") == 30);
        CHECK(after.store.version() == 1);
        CHECK(after.store.reverted() == 0);
    }

    TEST_CASE("taken back when it is not") {
        FakeStore store;
        Config c(store);
        c.propose("{\"version\":1,\"values\":{\"heartbeat_s\":30}}");
        c.store.tick(config_trial_us, true);
        c.propose("{\"version\":2,\"values\":{\"heartbeat_s\":31}}");
        c.propose("{\"version\":3,\"values\":{\"heartbeat_s\":32}}", 5);
        const int changes = c.changes;
        c.store.tick(5 + config_trial_us, false);
        CHECK(c.changes == changes + 1);
        CHECK(c.store.integer("heartbeat_s") == 30);  // not 31: that was on trial, too
        CHECK(c.store.version() == 1);
        CHECK(c.store.reverted() == 3);
        CHECK(c.store.unreported());
        CHECK_FALSE(c.store.on_trial());
        Config after(store);
        CHECK(after.store.integer("heartbeat_s") == 30);
        CHECK(after.store.unreported());
    }

    TEST_CASE("a newer proposal says more than one that was taken back") {
        FakeStore store;
        Config c(store);
        c.propose("{\"version\":1,\"values\":{}}");
        c.store.tick(config_trial_us, false);
        REQUIRE(c.store.unreported());
        CHECK(c.propose("{\"version\":2,\"values\":{\"heartbeat_s\":30}}") == "");
        CHECK_FALSE(c.store.unreported());
        c.store.reported();  // of a message that was on its way
        CHECK(c.store.on_trial());
        c.store.tick(config_trial_us, true);
        CHECK(c.store.version() == 2);
        CHECK(c.store.reverted() == 1);
    }

    TEST_CASE("a restart during the trial takes it back, too") {
        FakeStore store;
        Config c(store);
        c.propose("{\"version\":7,\"values\":{\"heartbeat_s\":30}}");
        Config after(store);
        CHECK(after.store.integer("heartbeat_s") == 60);
        CHECK(after.store.version() == 0);
        CHECK(after.store.reverted() == 7);
        CHECK(after.store.unreported());
        Config again(store);
        CHECK(again.store.unreported());
        CHECK(again.store.reverted() == 7);
        again.store.reported();
        CHECK_FALSE(again.store.unreported());
        Config later(store);
        CHECK_FALSE(later.store.unreported());
        CHECK(later.store.reverted() == 0);
    }

    TEST_CASE("a store that fails: refused, or taken back, never half") {
        FakeStore store;
        Config c(store);
        store.full = true;
        CHECK(c.propose("{\"version\":1,\"values\":{\"heartbeat_s\":30}}") == "The configuration could not be stored");
        CHECK(c.store.integer("heartbeat_s") == 60);
        CHECK_FALSE(c.store.on_trial());
        store.full = false;
        CHECK(c.propose("{\"version\":1,\"values\":{\"heartbeat_s\":30}}") == "");
        store.full = true;
        c.store.tick(config_trial_us, true);
        CHECK(c.store.integer("heartbeat_s") == 60);
    }

    TEST_CASE("damaged or foreign documents in the store are passed over") {
        FakeStore store;
        store.values["s:config"] =
            "{\"version\":3,\"values\":{\"heartbeat_s\":30,\"from_the_future\":1,\"telemetry\":5}}";
        store.values["s:config_trial"] = "{broken";
        Config c(store);
        CHECK(c.store.integer("heartbeat_s") == 30);
        CHECK(c.store.boolean("telemetry"));
        CHECK(c.store.version() == 3);
        store.values["s:config"] = "x";
        Config d(store);
        CHECK(d.store.integer("heartbeat_s") == 60);
        CHECK(d.store.integer("no such key") == 0);
        CHECK(d.store.text("no such key").empty());
    }

    TEST_CASE("a document longer than the store takes is refused") {
        const std::string hosts(1000, 'x');
        static const Property long_properties[] = {Property::Text("a").DefaultText("").AtMost(1000),
                                                   Property::Text("b").DefaultText("").AtMost(1000),
                                                   Property::Text("c").DefaultText("").AtMost(1000)};
        FakeStore store;
        ConfigStore c(long_properties, 3, store);
        const std::string json =
            "{\"version\":1,\"values\":{\"a\":\"" + hosts + "\",\"b\":\"" + hosts + "\",\"c\":\"" + hosts + "\"}}";
        const Result<JsonDocument> d = JsonDocument::parse(json);
        CHECK(c.propose(d.value().root(), 0).refused());
        CHECK(c.text("a").empty());
    }
}
