// SPDX-License-Identifier: Apache-2.0
// This firmware's own vectors: what the server's codec is tested with, too. A
// change of the wire shows here first.
#include "mcp_fixture.hpp"
#include "vectors.hpp"

#include <doctest/doctest.h>

#include <memory>

using namespace fleet;
using namespace fleet::test;

TEST_SUITE("vectors") {
    TEST_CASE("requests and their replies, byte for byte") {
        const JsonDocument doc = load_vectors("unit_requests.json");
        int cases = 0;
        for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next(), cases++) {
            const auto f = std::make_unique<McpFixture>();
            CHECK_MESSAGE(f->ask(c.text("wire")) == c.text("reply"), c.text("name"));
        }
        CHECK(cases >= 26);
    }

    TEST_CASE("what is refused, and with which code") {
        const JsonDocument doc = load_vectors("unit_refusals.json");
        int cases = 0;
        for (JsonView c = doc.root().member("cases").first(); c.exists(); c = c.next(), cases++) {
            const auto f = std::make_unique<McpFixture>();
            const JsonView want = c.member("error");
            const std::string code = std::to_string(want.integer_or("code", 0));
            CHECK_MESSAGE(error_of(f->ask(c.text("wire"))) == code + " " + text_of(want.member("message")),
                          c.text("name"));
            CHECK(f->runs == 0);
        }
        CHECK(cases >= 53);
    }
}
