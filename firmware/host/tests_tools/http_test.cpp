// SPDX-License-Identifier: Apache-2.0
#include "ports/curl_http.hpp"
#include "script_server.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

struct Got {
    Result<HttpResponse> result = Status{Code::invalid, ""};
    HttpResponse head;
    std::string body;
    int begun = 0;
};

Got get(const std::string &url, std::int64_t from = 0, Status at_begin = {}) {
    host::CurlHttp http({"", 2, 2, 5, 5});
    Got got;
    got.result = http.get(
        url, from,
        [&](const HttpResponse &head) {
            ++got.begun;
            got.head = head;
            return at_begin;
        },
        [&](Bytes part) -> Status { return got.body += part.text(), Status{}; });
    return got;
}

ScriptServer::Script answer(std::string text, std::string *request = nullptr) {
    return [text = std::move(text), request](Peer &peer) {
        const std::string head = peer.read_until("\r\n\r\n");
        if (request != nullptr) *request = head;
        peer.send(text);
    };
}

}  // namespace

TEST_SUITE("http") {
    TEST_CASE("a body streams, its head comes first and once") {
        ScriptServer server({answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"e1\"\r\n\r\nhello")});
        const Got got = get(server.url("/a"));
        REQUIRE(got.result.ok());
        CHECK(got.begun == 1);
        CHECK(got.head.status == 200);
        CHECK(got.head.content_length == 5);
        CHECK(got.head.etag == "\"e1\"");
        CHECK(got.body == "hello");
    }

    TEST_CASE("an answer without a body has a head, too") {
        ScriptServer server({answer("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")});
        const Got got = get(server.url("/a"));
        REQUIRE(got.result.ok());
        CHECK(got.begun == 1);
        CHECK(got.result.value().status == 404);
    }

    TEST_CASE("the rest of a file is asked for by Range") {
        std::string request;
        ScriptServer server({answer(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3-4/5\r\nContent-Length: 2\r\n\r\nlo", &request)});
        const Got got = get(server.url("/a"), 3);
        REQUIRE(got.result.ok());
        CHECK(got.head.status == 206);
        CHECK(got.body == "lo");
        server.wait();
        CHECK(request.find("Range: bytes=3-\r\n") != std::string::npos);
    }

    TEST_CASE("a server that starts over says so by 200, and may") {
        ScriptServer server({answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")});
        const Got got = get(server.url("/a"), 3);
        REQUIRE(got.result.ok());
        CHECK(got.head.status == 200);
        CHECK(got.body == "hello");
    }

    TEST_CASE("what is no good answer is a failure with its code") {
        std::string text;
        Code want = Code::unavailable;
        std::int64_t from = 0;
        SUBCASE("cut short") {
            text = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello";
        }
        SUBCASE("no HTTP") {
            text = "220 smtp ready\r\n";
        }
        SUBCASE("nothing") {}
        SUBCASE("the wrong part") {
            text = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4/5\r\nContent-Length: 5\r\n\r\nhello";
            from = 3;
            want = Code::corrupt;
        }
        ScriptServer server({answer(text)});
        const Got got = get(server.url("/a"), from);
        CHECK_MESSAGE(got.result.status().code == want, got.result.status().why);
    }

    TEST_CASE("redirects are not followed") {
        ScriptServer server(
            {answer("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")});
        const Got got = get(server.url("/a"));
        REQUIRE(got.result.ok());
        CHECK(got.head.status == 302);
    }

    TEST_CASE("only http is spoken, and a failure of ours ends the transfer") {
        CHECK(get("file:///etc/passwd").result.status().code == Code::invalid);
        CHECK(get("nonsense://x").result.status().code == Code::invalid);
        ScriptServer server({answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")});
        const Got got = get(server.url("/a"), 0, {Code::no_space, "full"});
        CHECK(got.result.status().code == Code::no_space);
        CHECK(got.body.empty());
    }

    TEST_CASE("a server that says nothing is left") {
        ScriptServer server({[](Peer &peer) { peer.read_until("never"); }});
        CHECK(get(server.url("/a")).result.status().code == Code::timeout);
    }

    TEST_CASE("a post carries headers and body; a long answer is refused") {
        std::string request, reply;
        ScriptServer server({[&](Peer &peer) {
                                 request = peer.read_until("\r\n\r\n");
                                 request += peer.read_bytes(2);
                                 peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                             },
                             answer("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n01234567890123456789")});
        host::CurlHttp http;
        const HttpHeader headers[] = {{"Device-Id", "a0:85:e3:11:22:33"}};
        REQUIRE(http.post(server.url("/ota/"), headers, 1, Bytes{"{}"}, reply, 100).ok());
        CHECK(reply == "ok");
        CHECK(http.post(server.url("/ota/"), nullptr, 0, Bytes{}, reply, 10).status().code == Code::no_memory);
        server.wait();
        CHECK(request.find("Device-Id: a0:85:e3:11:22:33\r\n") != std::string::npos);
        CHECK(request.substr(request.size() - 2) == "{}");
        const HttpHeader forged[] = {{"A", "x\r\nB: y"}};
        CHECK(http.post(server.url("/"), forged, 1, Bytes{}, reply, 10).status().code == Code::invalid);
    }

    TEST_CASE("a file goes up as one part named file, in chunks") {
        std::string request;
        ScriptServer server({[&](Peer &peer) {
            request = peer.read_until("\r\n0\r\n\r\n");
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }});
        host::CurlHttp http;
        int left = 3;
        const auto result = http.post_file(server.url("/up"), "screenshot.jpg", "image/jpeg",
                                           [&](MutableBytes into) -> Result<std::size_t> {
                                               if (left-- == 0) return std::size_t{0};
                                               into.data[0] = 'j';
                                               return std::size_t{1};
                                           });
        REQUIRE(result.ok());
        server.wait();
        CHECK(request.find("Transfer-Encoding: chunked") != std::string::npos);
        CHECK(request.find("name=\"file\"; filename=\"screenshot.jpg\"") != std::string::npos);
        CHECK(request.find("Content-Type: image/jpeg") != std::string::npos);
    }
}
