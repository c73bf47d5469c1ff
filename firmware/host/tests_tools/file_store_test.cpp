// SPDX-License-Identifier: Apache-2.0
#include "ports/file_store.hpp"
#include "ports/file_io.hpp"
#include "temp_dir.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

TEST_SUITE("store") {
    TEST_CASE("values outlive the store") {
        TempDir dir;
        {
            host::FileStore store(dir.path());
            REQUIRE(store.set("endpoint", "127.0.0.1:1883").ok());
            REQUIRE(store.set_int("keepalive", -9007199254740993).ok());
            REQUIRE(store.set("empty", "").ok());
        }
        host::FileStore store(dir.path());
        CHECK(store.get("endpoint").value() == "127.0.0.1:1883");
        CHECK(store.get_int("keepalive").value() == -9007199254740993);
        CHECK(store.get("empty").ok());
        REQUIRE(store.erase("endpoint").ok());
        CHECK(store.get("endpoint").status().code == Code::not_found);
        CHECK(store.erase("endpoint").ok());
    }

    TEST_CASE("a value of another type is not there") {
        TempDir dir;
        host::FileStore store(dir.path());
        REQUIRE(store.set_int("n", 7).ok());
        CHECK(store.get("n").status().code == Code::not_found);
    }

    TEST_CASE("limits are those of NVS") {
        TempDir dir;
        host::FileStore store(dir.path());
        CHECK(store.set("sixteen_letters_", "x").code == Code::invalid);
        CHECK(store.set("", "x").code == Code::invalid);
        CHECK(store.set("k", std::string(4000, 'x')).code == Code::no_space);
        CHECK(store.set("k", std::string(3999, 'x')).ok());
    }

    TEST_CASE("keys stay inside the directory, and apart") {
        TempDir dir;
        REQUIRE(host::make_directory(dir / "inner").ok());
        host::FileStore store(dir / "inner");
        REQUIRE(store.set("../x", "a").ok());
        REQUIRE(store.set("..", "b").ok());
        REQUIRE(store.set("%2e%2e", "c").ok());
        CHECK(store.get("../x").value() == "a");
        CHECK(store.get("..").value() == "b");
        CHECK(store.get("%2e%2e").value() == "c");
        CHECK_FALSE(std::filesystem::exists(dir / "x"));
        CHECK_FALSE(std::filesystem::exists(dir / "kx"));
    }

    TEST_CASE("half a write is no write") {
        TempDir dir;
        host::FileStore store(dir.path());
        REQUIRE(store.set("k", "before").ok());
        REQUIRE(host::replace_file(dir / "kk.new", Bytes{"sgarb"}).ok());  // what a cut before the rename leaves
        CHECK(store.get("k").value() == "before");
        CHECK(store.set("k", "after").ok());
        CHECK(store.get("k").value() == "after");
    }

    TEST_CASE("a directory that is gone is a failure, not a crash") {
        host::FileStore store("/nonexistent/dir");
        CHECK_FALSE(store.set("k", "v").ok());
        CHECK_FALSE(store.get("k").ok());
    }
}
