// SPDX-License-Identifier: Apache-2.0
#include "fleet/json.hpp"
#include "fleet/base64.hpp"
#include "fleet/hex.hpp"
#include "fleet/hook.hpp"
#include "fleet/json_writer.hpp"
#include "fleet/utf8.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

using namespace fleet;

namespace {

struct Case {
    const char *text;
    bool valid;
};

std::string written(FunctionRef<void(JsonWriter &)> fill, std::size_t capacity = 256) {
    char buffer[256];
    JsonWriter w(buffer, capacity);
    fill(w);
    return w.overflow() ? "overflow" : std::string(w.view());
}

}  // namespace

TEST_SUITE("json") {
    TEST_CASE("scan takes what RFC 8259 takes, and no U+0000") {
        const Case cases[] = {
            {"{}", true},
            {" [1, -2.5e+3, \"a\\u00e9\\ud83d\\ude00\", true, false, null, {\"a\":[]}] ", true},
            {"0", true},
            {"\"\"", true},
            {"", false},
            {"{", false},
            {"[1,]", false},
            {"{\"a\":1,}", false},
            {"{\"a\" 1}", false},
            {"{1:1}", false},
            {"[1 2]", false},
            {"[1]]", false},
            {"[}", false},
            {"01", false},
            {"-", false},
            {"1.", false},
            {"1e", false},
            {"+1", false},
            {"tru", false},
            {"\"a", false},
            {"\"\\", false},
            {"\"\\x\"", false},
            {"\"\\u12\"", false},
            {"\"\\u0000\"", false},
            {"\"\\ud83d\"", false},
            {"\"\\ude00\"", false},
            {"\"\\ud800\\udc00\\udbff\\udfff\"", true},
            {"\"\\ud800\\udbff\"", false},
            {"\"\\ud800\\ue000\"", false},
            {"\"\\ud7ff\\ue000\"", true},
            {"\"\\ud83d\\u0041\"", false},
            {"\"a\nb\"", false},
            {"\"\xff\"", false},
            {"\"\xc0\x80\"", false},
            {"nan", false},
        };
        for (const Case &c : cases)
            CHECK_MESSAGE(scan_json(c.text, {}).ok() == c.valid, c.text);
        CHECK_FALSE(scan_json(std::string("\"a\0b\"", 5), {}).ok());
        CHECK_FALSE(scan_json(std::string("{}\0", 3), {}).ok());
    }

    TEST_CASE("limits hold before cJSON sees the text") {
        CHECK(scan_json("[[[[[[[[1]]]]]]]]", {}).ok());
        CHECK_FALSE(scan_json("[[[[[[[[[1]]]]]]]]]", {}).ok());
        CHECK_FALSE(scan_json(std::string(5000, '['), {}).ok());
        CHECK(scan_json("[1,2,3]", {8192, 8, 4}).ok());
        CHECK_FALSE(scan_json("[1,2,3,4]", {8192, 8, 4}).ok());
        CHECK(scan_json("[1]", {3, 8, 4}).ok());
        CHECK(scan_json("[1] ", {3, 8, 4}).code == Code::no_space);
    }

    TEST_CASE("raw_member gives a value as written") {
        CHECK(raw_member("{\"a\":{\"id\":1},\"id\" : 9223372036854775807 }", "id") == "9223372036854775807");
        CHECK(raw_member("{\"id\":\"a\\\"b\"}", "id") == "\"a\\\"b\"");
        CHECK(raw_member("{\"b\":[1,{}],\"a\":{\"x\":[]}}", "a") == "{\"x\":[]}");
        CHECK(raw_member("{\"\\u0069d\":1}", "id").empty());
        CHECK(raw_member("{}", "id").empty());
        CHECK(raw_member("[]", "id").empty());
        CHECK(raw_member("", "id").empty());
        CHECK(raw_member("{\"a\":1", "b").empty());
    }

    TEST_CASE("views chain over what is not there") {
        const Result<JsonDocument> d =
            JsonDocument::parse("{\"a\":{\"n\":5,\"f\":1.9,\"s\":\"x\",\"b\":true,\"z\":null}}");
        REQUIRE(d.ok());
        const JsonView a = d.value().root().member("a");
        CHECK(a.member("n").integer().value() == 5);
        CHECK_FALSE(a.member("f").integer().ok());
        CHECK_FALSE(a.member("s").integer().ok());
        CHECK(a.member("f").integer_or(7) == 7);
        CHECK(a.member("s").text() == "x");
        CHECK(a.member("n").text().empty());
        CHECK(a.member("b").is_true());
        CHECK(a.member("b").is_bool());
        CHECK(a.member("z").is_null());
        CHECK_FALSE(a.is_array());
        CHECK_FALSE(a.member("A").exists());
        CHECK_FALSE(a.member("none").member("deeper").first().next().exists());
        CHECK(JsonView().key().empty());
        CHECK_FALSE(d.value().root().member("A").exists());
    }

    TEST_CASE("integers end where doubles stop being exact") {
        const auto whole = [](const char *text) { return JsonDocument::parse(text).value().root().integer(); };
        CHECK(whole("9007199254740992").value() == 9007199254740992);
        CHECK_FALSE(whole("9007199254740994").ok());
        CHECK_FALSE(whole("1e300").ok());
        CHECK_FALSE(whole("1e999").ok());
        CHECK(whole("1e3").value() == 1000);
    }

    TEST_CASE("a document moves") {
        JsonDocument a = std::move(JsonDocument::parse("[1]").value());
        JsonDocument b = std::move(JsonDocument::parse("[2]").value());
        a = std::move(b);
        CHECK(a.root().first().integer().value() == 2);
        JsonDocument &self = a;
        a = std::move(self);
        CHECK(a.root().is_array());
    }

    TEST_CASE("the writer escapes each control character, and no more") {
        for (int c = 1; c < 0x80; c++) {
            const std::string text(1, static_cast<char>(c));
            const std::string out = written([&text](JsonWriter &w) { w.text(text); });
            const bool plain = c >= 0x20 && c != '"' && c != '\\';
            CHECK((out == "\"" + text + "\"") == plain);
            const Result<JsonDocument> read = JsonDocument::parse("[" + out + "]");
            REQUIRE(read.ok());
            CHECK(read.value().root().first().text() == text);
        }
    }

    TEST_CASE("the writer escapes") {
        CHECK(written([](JsonWriter &w) { w.text("a\"b\\c\n\r\t\x01\x7f\xff 温"); }) ==
              "\"a\\\"b\\\\c\\n\\r\\t\\u0001\x7f\xEF\xBF\xBD 温\"");
        CHECK(written([](JsonWriter &w) {
                  w.begin_object().member("a", 1).member("b", true).key("c").begin_array().null().integer(-5);
                  w.end_array().key("d").begin_object().end_object().member("e", "f").end_object();
              }) == "{\"a\":1,\"b\":true,\"c\":[null,-5],\"d\":{},\"e\":\"f\"}");
        CHECK(written([](JsonWriter &w) { w.integer(INT64_MIN); }) == "-9223372036854775808");
        CHECK(written([](JsonWriter &w) { w.integer(0); }) == "0");
    }

    TEST_CASE("the writer embeds JSON in a string") {
        CHECK(written([](JsonWriter &w) {
                  w.begin_object().key("text").begin_embedded();
                  w.begin_object().member("s", "q\"\n").member("n", 1).end_object();
                  w.end_embedded().member("after", 2).end_object();
              }) == "{\"text\":\"{\\\"s\\\":\\\"q\\\\\\\"\\\\n\\\",\\\"n\\\":1}\",\"after\":2}");
    }

    TEST_CASE("overflow is all or nothing, at every capacity") {
        auto fill = [](JsonWriter &w) {
            w.begin_object().member("a", "x\"y").key("b").begin_embedded().text("\\").end_embedded().end_object();
        };
        const std::string whole = written(fill);
        for (std::size_t n = 0; n < whole.size(); n++)
            CHECK(written(fill, n) == "overflow");
        CHECK(written(fill, whole.size()) == whole);
    }

    TEST_CASE("rewind takes an overflow back") {
        char buffer[8];
        JsonWriter w(buffer, sizeof buffer);
        w.begin_array().integer(1);
        const JsonWriter::Mark m = w.mark();
        w.text("too long for this");
        CHECK(w.overflow());
        w.rewind(m);
        w.integer(2).end_array();
        CHECK(w.view() == "[1,2]");
    }

    TEST_CASE("rewind leaves a text that was begun in between") {
        char buffer[64];
        JsonWriter w(buffer, sizeof buffer);
        const JsonWriter::Mark m = w.mark();
        w.begin_object().key("text").begin_embedded();
        w.begin_object().member("a", "b");
        w.rewind(m);
        w.begin_object().member("a", "b").end_object();
        CHECK(w.view() == "{\"a\":\"b\"}");
    }

    TEST_CASE("the writer's base64, at every length of the last group") {
        const std::string plain = "foobarbaz";
        for (std::size_t n = 0; n <= plain.size(); n++) {
            const std::string part = plain.substr(0, n);
            CHECK(written([&part](JsonWriter &w) { w.base64(Bytes(part)); }) ==
                  "\"" + encode_base64(Bytes(part)) + "\"");
        }
    }

    TEST_CASE("utf8_length") {
        CHECK(utf8_length("") == 0);
        CHECK(utf8_length("a") == 1);
        CHECK(utf8_length("\xc3\xa9") == 2);
        CHECK(utf8_length("\xe6\xb8\xa9") == 3);
        CHECK(utf8_length("\xf0\x9f\x98\x80") == 4);
        for (const char *bad :
             {"\x80", "\xc1\x81", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
              "\xf5\x80\x80\x80", "\xc3", "\xc3\x7f", "\xc3\xc0", "\xe6\xb8", "\xc3\x28", "\xe6\xb8\x28"}) {
            CHECK(utf8_length(bad) == 0);
        }
    }
}

TEST_SUITE("codings") {
    TEST_CASE("base64") {
        const struct {
            const char *plain, *coded;
        } cases[] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
                     {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfd", "//79"}};
        for (const auto &c : cases) {
            CHECK(encode_base64(Bytes(std::string_view(c.plain))) == c.coded);
            std::uint8_t out[8];
            const Result<std::size_t> n = decode_base64(c.coded, {out, sizeof out});
            REQUIRE(n.ok());
            CHECK(std::string(reinterpret_cast<char *>(out), n.value()) == c.plain);
        }
        std::uint8_t out[2];
        for (const char *bad : {"a", "====", "Zg=a", "Z===", "Zg==Zg==", "Z g=", "Zm9v"}) {
            CHECK_FALSE(decode_base64(bad, {out, sizeof out}).ok());
        }
    }

    TEST_CASE("hex") {
        const std::uint8_t bytes[] = {0x00, 0xa5, 0xff};
        CHECK(encode_hex({bytes, 3}) == "00a5ff");
        std::uint8_t out[3];
        CHECK(decode_hex("00A5fF", {out, 3}).ok());
        CHECK(std::memcmp(out, bytes, 3) == 0);
        CHECK_FALSE(decode_hex("00a5f", {out, 3}).ok());
        CHECK_FALSE(decode_hex("00a5fg", {out, 3}).ok());
        CHECK_FALSE(decode_hex("0xa5ff", {out, 3}).ok());
    }
}
