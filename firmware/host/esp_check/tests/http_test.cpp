// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/esp_clock.hpp"
#include "fleet_esp/http_client.hpp"
#include "fleet_esp/nvs_store.hpp"

#include "mbedtls/x509_crt.h"

#include <functional>

using fleet::Bytes;
using fleet::HttpResponse;
using fleet::Result;
using fleet::Status;
using fleet::esp::EspHttpClient;
using fleet::esp::HttpOptions;
namespace http = fake::http;

namespace {

struct Web {
    Web() { fake::reset(); }
    ~Web() { CHECK(http::open_clients == 0); }

    Result<HttpResponse> get(std::int64_t from = 0) {
        body.clear();
        return client.get(
            "https://fleet.example.org/fw", from,
            [this](const HttpResponse &r) {
                head = r;
                return begin_result;
            },
            [this](Bytes b) {
                body.append(b.text());
                return body.size() > sink_limit ? Status{fleet::Code::no_space, "full"} : Status{};
            });
    }
    Result<HttpResponse> post(std::size_t limit = 100) {
        const fleet::HttpHeader headers[] = {{"Device-Id", "a0:85"}, {"Content-Type", "application/json"}};
        return client.post("http://fleet.example.org/ota/", headers, 2, Bytes(sent), body, limit);
    }

    EspHttpClient client{HttpOptions{}};
    HttpResponse head;
    Status begin_result;
    std::string body, sent = std::string(250, 'q');
    std::size_t sink_limit = 1 << 20;
};

}  // namespace

TEST_SUITE_BEGIN("http");

TEST_CASE("get streams the body, with its length and ETag") {
    Web web;
    http::Answer answer = http::answer(std::string(2500, 'x'));
    answer.etag = "\"v1\"";
    http::answers = {answer};
    const auto result = web.get();
    REQUIRE(result.ok());
    CHECK(web.body.size() == 2500);
    CHECK(web.head.content_length == 2500);
    CHECK(result.value().etag == "\"v1\"");
    const http::Request &request = http::requests.at(0);
    CHECK((request.attach == fleet::esp::ServerTrust{}.attach()));
    CHECK_FALSE(request.redirects);
    CHECK(request.headers.count("Range") == 0);
    CHECK(fake::rtos::watchdog_feeds > 3);
}

TEST_CASE("a private authority replaces the bundle") {
    Web web;
    HttpOptions options;
    options.trust.ca_pem = "PEM";
    EspHttpClient own(options);
    std::string reply;
    http::answers = {http::answer("ok")};
    REQUIRE(own.post("https://fleet.example.org/", nullptr, 0, Bytes(), reply, 10).ok());
    CHECK((http::requests.at(0).attach == options.trust.attach()));
    CHECK((http::requests.at(0).attach != fleet::esp::ServerTrust{}.attach()));
}

TEST_CASE("the rest of a file is asked for by Range") {
    Web web;
    http::answers = {http::answer("rest", 206)};
    const auto result = web.get(65536);
    CHECK(result.value().status == 206);
    CHECK(http::requests.at(0).headers["Range"] == "bytes=65536-");
}

TEST_CASE("redirects and errors are answers") {
    Web web;
    http::answers = {http::answer("", 302), http::answer("gone", 404)};
    CHECK(web.get().value().status == 302);
    CHECK(web.get().value().status == 404);
    CHECK(web.body == "gone");
}

TEST_CASE("a body that ends early is no body") {
    Web web;
    http::Answer cut = http::answer(std::string(3000, 'x'));
    cut.breaks_at = 1500;
    http::Answer stalled = cut, broken = cut;
    stalled.break_result = -ESP_ERR_HTTP_EAGAIN;
    broken.break_result = -1;
    http::answers = {cut, stalled, broken};
    CHECK(name_of(web.get()) == "unavailable");
    CHECK(name_of(web.get()) == "timeout");
    CHECK(name_of(web.get()) == "unavailable");
}

TEST_CASE("a chunked body is whole at its last chunk only") {
    Web web;
    http::Answer whole = http::answer("text");
    whole.length = 0;
    whole.chunked = true;
    http::Answer cut = whole;
    cut.breaks_at = 2;
    http::Answer nothing = http::answer("");
    http::answers = {whole, cut, nothing};
    CHECK(web.get().value().content_length == -1);
    CHECK(web.body == "text");
    CHECK(name_of(web.get()) == "unavailable");
    CHECK(web.get().ok());
}

TEST_CASE("begin and sink stop a transfer") {
    Web web;
    http::answers = {http::answer(std::string(5000, 'x')), http::answer("x")};
    web.sink_limit = 1500;
    CHECK(name_of(web.get()) == "no_space");
    CHECK(web.body.size() == 4096);  // one piece, and no more
    web.begin_result = {fleet::Code::wrong_target, "not ours"};
    CHECK(name_of(web.get()) == "wrong_target");
    CHECK(web.body.empty());
}

TEST_CASE("a server that drips is left in the end") {
    Web web;
    http::Answer slow = http::answer(std::string(1 << 20, 'x'));
    slow.read_us = 14 * 1000000;  // each read just below the stall limit
    http::answers = {slow};
    CHECK(name_of(web.get()) == "timeout");
    CHECK(web.body.size() < 200000);
}

TEST_CASE("dates of certificates count once the clock is set, everything else always") {
    constexpr std::uint32_t dates = MBEDTLS_X509_BADCERT_EXPIRED | MBEDTLS_X509_BADCERT_FUTURE;
    constexpr std::uint32_t untrusted = MBEDTLS_X509_BADCERT_NOT_TRUSTED;
    fleet::esp::ServerTrust own;
    own.ca_pem = "PEM";
    fake::reset();
    fleet::esp::EspClock clock;
    CHECK(fake::tls::connect(fleet::esp::ServerTrust{}.attach(), untrusted | dates) == 0);
    CHECK(fake::tls::bundle_sees == untrusted);
    CHECK(fake::tls::connect(own.attach(), dates) == 0);
    CHECK(fake::tls::parsed == "PEM");
    CHECK(fake::tls::connect(own.attach(), untrusted | dates) == untrusted);
    clock.set_unix_ms(1786147200000, 0);
    CHECK(fake::tls::connect(fleet::esp::ServerTrust{}.attach(), untrusted) == 0);
    CHECK(fake::tls::connect(fleet::esp::ServerTrust{}.attach(), untrusted | MBEDTLS_X509_BADCERT_EXPIRED) != 0);
    CHECK(fake::tls::connect(own.attach(), MBEDTLS_X509_BADCERT_FUTURE) == MBEDTLS_X509_BADCERT_FUTURE);
    CHECK(fake::tls::connect(own.attach(), 0) == 0);
}

TEST_CASE("what had expired at the date remembered is refused before the clock is set") {
    constexpr std::uint32_t expired = MBEDTLS_X509_BADCERT_EXPIRED, future = MBEDTLS_X509_BADCERT_FUTURE;
    Bench bench;
    fleet::esp::NvsStore store;
    REQUIRE(store.open("fleet").ok());
    REQUIRE(store.set_int(fleet::esp::EspClock::key, 1786147200).ok());
    fleet::esp::EspClock clock;
    clock.remember(store, bench.executor);
    fleet::esp::ServerTrust own;
    own.ca_pem = "PEM";
    for (const auto &trust : {fleet::esp::ServerTrust{}, own}) {
        CHECK(fake::tls::connect(trust.attach(), expired | future) == expired);
        CHECK(fake::tls::connect(trust.attach(), future) == 0);
    }
    clock.set_unix_ms(1786147200000, 0);
    CHECK(fake::tls::connect(own.attach(), future) == future);
}

namespace {

// drips is a server that sends one byte a second.
http::Answer drips(std::size_t size) {
    http::Answer slow = http::answer(std::string(size, 'x'));
    slow.read_us = 1'000'000;
    slow.read_size = 1;
    return slow;
}

std::int64_t seconds_of(const std::function<void()> &fn) {
    const std::int64_t begin = fake::rtos::now_us;
    fn();
    return (fake::rtos::now_us - begin) / 1'000'000;
}

}  // namespace

TEST_CASE("a limit holds against a body that drips, and the watchdog is fed") {
    for (const std::int64_t interval_us : {1'000'000, 90'000, 900}) {
        Web web;
        HttpOptions options;
        options.exchange_ms = 8000;
        EspHttpClient client(options);
        http::Answer slow = drips(100'000);
        slow.read_us = interval_us;
        http::answers = {slow};
        const std::int64_t begin = fake::rtos::now_us;
        CHECK(name_of(client.post("http://fleet.example.org/", nullptr, 0, Bytes(), web.body, 100'000)) == "timeout");
        CHECK(fake::rtos::now_us - begin <= 8'200'000);
        CHECK(fake::rtos::now_us - begin >= 8'000'000);
        CHECK(fake::rtos::longest_unfed_us <= 5'000'000);
    }
}

TEST_CASE("a long download that drips feeds the watchdog as long as it may last") {
    Web web;
    http::answers = {drips(100'000)};
    const std::int64_t took = seconds_of([&] { CHECK(name_of(web.get()) == "timeout"); });
    CHECK(took == 30 * 60);
    CHECK(fake::rtos::longest_unfed_us <= 5'000'000);
}

TEST_CASE("a head or a chunk's frame that drips is a stall") {
    Web web;
    http::Answer head = drips(10);
    head.framing = 100'000;
    http::Answer frame = head;
    frame.chunked = true;
    frame.length = 0;
    http::answers = {head, frame};
    for (int i = 0; i < 2; ++i) {
        const std::int64_t took = seconds_of([&] { CHECK(name_of(web.get()) == "timeout"); });
        CHECK(took == 15);
        CHECK(fake::rtos::longest_unfed_us <= 5'000'000);
    }
}

TEST_CASE("a server that answers late, within the limit, is waited for") {
    Web web;
    http::Answer late = http::answer("text");
    late.framing = 1;
    late.read_us = 14'000'000;
    http::answers = {late};
    REQUIRE(web.get().ok());
    CHECK(web.body == "text");
}

TEST_CASE("no connection, no answer, no HTTP") {
    Web web;
    CHECK(name_of(web.get()) == "unavailable");
    http::Answer silent, closed, odd;
    silent.length = -ESP_ERR_HTTP_EAGAIN;
    closed.length = -1;
    odd.status = -1;
    http::answers = {silent, closed, odd};
    CHECK(name_of(web.get()) == "timeout");
    CHECK(name_of(web.get()) == "unavailable");
    CHECK(name_of(web.get()) == "unavailable");
}

TEST_CASE("only web urls are followed") {
    Web web;
    std::string reply;
    CHECK(name_of(web.client.post("file:///etc/passwd", nullptr, 0, Bytes(), reply, 10)) == "invalid");
    CHECK(name_of(web.client.post("", nullptr, 0, Bytes(), reply, 10)) == "invalid");
    CHECK(http::requests.empty());
}

TEST_CASE("post sends headers and the whole body, and limits the answer") {
    Web web;
    http::answers = {http::answer("{\"ok\":1}"), http::answer(std::string(101, 'x'))};
    REQUIRE(web.post().ok());
    CHECK(web.body == "{\"ok\":1}");
    const http::Request request = http::requests.at(0);
    CHECK(request.post);
    CHECK(request.length == 250);
    CHECK(request.body == web.sent);
    CHECK(request.headers.at("Device-Id") == "a0:85");
    CHECK(name_of(web.post()) == "no_space");
}

TEST_CASE("a file goes out as one multipart part, in chunks") {
    Web web;
    http::answers = {http::answer("")};
    int left = 2;
    const auto result = web.client.post_file("http://fleet.example.org/up", "a\"b\n.jpg", "image/jpeg",
                                             [&](fleet::MutableBytes into) -> Result<std::size_t> {
                                                 if (left-- == 0) return std::size_t{0};
                                                 into.data[0] = 'J';
                                                 return std::size_t{1};
                                             });
    REQUIRE(result.ok());
    const http::Request &request = http::requests.at(0);
    CHECK(request.length == -1);
    CHECK(request.headers.at("Content-Type") == "multipart/form-data; boundary=fleet-0f6b1d5e8c7a4932");
    const std::string head =
        "--fleet-0f6b1d5e8c7a4932\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a_b_.jpg\"\r\n"
        "Content-Type: image/jpeg\r\n\r\n";
    const std::string tail = "\r\n--fleet-0f6b1d5e8c7a4932--\r\n";
    char sizes[2][8];
    std::snprintf(sizes[0], sizeof sizes[0], "%zx", head.size());
    std::snprintf(sizes[1], sizeof sizes[1], "%zx", tail.size());
    CHECK(request.body ==
          sizes[0] + ("\r\n" + head + "\r\n") + "1\r\nJ\r\n1\r\nJ\r\n" + sizes[1] + "\r\n" + tail + "\r\n0\r\n\r\n");
}

TEST_CASE("a source that fails ends the upload") {
    Web web;
    http::answers = {http::answer("")};
    const auto result = web.client.post_file(
        "http://fleet.example.org/up", "a", "b/c",
        [](fleet::MutableBytes) -> Result<std::size_t> { return Status{fleet::Code::io, "no flash"}; });
    CHECK(name_of(result) == "io");
}
