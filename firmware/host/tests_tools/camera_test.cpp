// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "picture/codec.hpp"
#include "script_server.hpp"

#include "fleet/base64.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

const char ask_arguments[] = R"({"question":"is the door shut?"})";

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

// A server that takes a photo, keeps what it was sent, and answers.
ScriptServer::Script explain(const std::string &answer, std::string &got) {
    return [answer, &got](Peer &peer) {
        got = peer.read_until("--\r\n");
        peer.send(answer);
    };
}

void set_vision(Bench &b, const std::string &vision) {
    b.request("initialize", R"({"capabilities":{"vision":)" + vision + "}}");
}

std::string vision(const std::string &url, const std::string &token = "t0k3n") {
    return R"({"url":")" + url + R"(","token":")" + token + "\"}";
}

}  // namespace

TEST_SUITE("camera") {
    TEST_CASE("the photo and the question go to the server, whose text is the answer") {
        Bench b;
        std::string got;
        ScriptServer server(
            {explain("HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n{\"success\":true,\"response\":\"yes\"}", got)});
        set_vision(b, vision(server.url("/vision/explain")));
        const std::string answer = b.call("self.camera.take_photo", ask_arguments, false);
        CHECK(has(answer, R"({\"success\":true,\"response\":\"yes\"})"));
        CHECK(has(got, "POST /vision/explain "));
        CHECK(has(got, "Authorization: Bearer t0k3n\r\n"));
        CHECK(has(got, "Device-Id: 02:00:00:00:00:01\r\n"));
        CHECK(has(got, "Client-Id: "));
        CHECK(has(got, "name=\"question\"\r\n\r\nis the door shut?\r\n"));
        const std::size_t head = got.find("Content-Type: image/jpeg\r\n\r\n");
        REQUIRE(head != std::string::npos);
        const std::string rest = got.substr(head + 28);
        const auto photo = host::decode_picture(Bytes(rest));
        REQUIRE(photo.ok());
        CHECK(photo.value().width == 640);
    }

    TEST_CASE("without an address, a small photo is the answer") {
        Bench b;
        const std::string answer = b.call("self.camera.take_photo", ask_arguments, false);
        CHECK(has(answer, R"("type":"image")"));
        CHECK(has(answer, R"("mimeType":"image/jpeg")"));
        CHECK(has(answer, "\"data\":\"/9j/"));  // how a JPEG begins
        CHECK(has(answer, "\"isError\":false"));
    }

    TEST_CASE("what the server refuses is told with its status") {
        Bench b;
        std::string got;
        ScriptServer server({explain("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}", got)});
        set_vision(b, vision(server.url("/v")));
        const std::string answer = b.call("self.camera.take_photo", ask_arguments);
        CHECK(has(answer, "status 401"));
        CHECK(has(answer, "\"isError\":true"));
    }

    TEST_CASE("a photo goes to hosts on the list only") {
        Bench b;
        set_vision(b, vision("http://192.0.2.7/vision"));
        CHECK(has(b.call("self.camera.take_photo", ask_arguments), "host is not on the list"));
    }

    TEST_CASE("an address that cannot be one is not taken") {
        Bench b;
        set_vision(b, vision("http://192.0.2.7/vision"));
        const char *const hostile[] = {"17", "null", "{}", "\"http://192.0.2.9/\""};
        for (const char *const text : hostile)
            set_vision(b, text);
        set_vision(b, vision("http://127.0.0.1/" + std::string(CameraTool::max_url, 'x')));
        set_vision(b, vision("http://127.0.0.1/", std::string(CameraTool::max_token + 1, 'x')));
        set_vision(b, vision("http://127.0.0.1/", R"(t\r\nX-Evil: 1)"));
        // "{}" took the address back; none of the others set one.
        CHECK(has(b.call("self.camera.take_photo", ask_arguments), R"("type":"image")"));
    }

    TEST_CASE("a photo that is too large is refused") {
        Bench b;
        b.kit.picture_bytes = 100;
        CHECK(has(b.call("self.camera.take_photo", ask_arguments), "the photo is too large"));
    }

    TEST_CASE("a board without a camera does not list it") {
        Bench full, bare(Bench::Parts::none);
        CHECK(has(full.list(false), "self.camera.take_photo"));
        CHECK_FALSE(has(bare.list(), "self.camera.take_photo"));
        CHECK(has(full.call("self.get_device_status"), R"(\"battery\":{\"level\":88,\"charging\":false})"));
        CHECK_FALSE(has(bare.call("self.get_device_status"), "battery"));
    }
}
