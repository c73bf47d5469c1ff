// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/nvs_store.hpp"

using fleet::esp::NvsStore;

namespace {

struct Opened {
    Opened() {
        fake::reset();
        REQUIRE(store.open("fleet").ok());
    }
    NvsStore store;
};

}  // namespace

TEST_SUITE_BEGIN("store");

TEST_CASE("what was set is there") {
    Opened opened;
    NvsStore &store = opened.store;
    REQUIRE(store.set_int("boots", -3).ok());
    REQUIRE(store.set("name", std::string_view("a\0b", 3)).ok());
    REQUIRE(store.set("long", std::string(5000, 'x')).ok());
    REQUIRE(store.commit().ok());
    CHECK(store.get_int("boots").value() == -3);
    CHECK(store.get("name").value() == std::string("a\0b", 3));
    CHECK(store.get("long").value().size() == 5000);
    CHECK(fake::nvs::commits == 1);
}

TEST_CASE("what was not set is not found") {
    Opened opened;
    NvsStore &store = opened.store;
    CHECK(name_of(store.get_int("boots")) == "not_found");
    CHECK(name_of(store.get("name")) == "not_found");
    CHECK(store.erase("name").ok());
}

TEST_CASE("a key has 1 to 15 characters") {
    Opened opened;
    NvsStore &store = opened.store;
    CHECK(store.set("fifteen_letters", "x").ok());
    CHECK(name_of(store.set("sixteen__letters", "x")) == "invalid");
    CHECK(name_of(store.set_int("", 1)) == "invalid");
    CHECK(name_of(store.get("sixteen__letters")) == "invalid");
    CHECK(name_of(store.erase("sixteen__letters")) == "invalid");
}

TEST_CASE("full flash says so") {
    Opened opened;
    NvsStore &store = opened.store;
    fake::nvs::write_result = ESP_ERR_NVS_NOT_ENOUGH_SPACE;
    CHECK(name_of(store.set("name", "x")) == "no_space");
}

TEST_CASE("settings of another layout are erased, other failures are told") {
    fake::reset();
    fake::nvs::init_result = ESP_ERR_NVS_NEW_VERSION_FOUND;
    NvsStore store;
    CHECK(store.open("fleet").ok());
    CHECK(fake::nvs::erases == 1);
    fake::nvs::init_result = ESP_ERR_NO_MEM;
    NvsStore other;
    CHECK(name_of(other.open("fleet")) == "no_memory");
    CHECK(fake::nvs::erases == 1);
}
