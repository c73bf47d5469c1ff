// SPDX-License-Identifier: Apache-2.0
// The page on the access point, and its name server.
#include "support.hpp"

#include "fleet_esp/esp_system.hpp"
#include "fleet_esp/provisioning.hpp"

#include <cstring>

namespace web = fake::web;
namespace udp = fake::udp;
namespace wifi = fake::wifi;
namespace prov = fake::provisioning;

namespace {

constexpr const char *fleet_url = "http://fleet.example.org/xiaozhi/ota/";

struct Setup : Bench {
    explicit Setup(bool asks_code = false) {
        wifi_ap_record_t record = {};
        std::strcpy(reinterpret_cast<char *>(record.ssid), "cafe");
        wifi::found = {record, record};
        provisioning.on_invite = [this](const fleet::esp::Invitation &i) { code = i.code; };
        provisioning.on_fleet = [this](const std::string &url) { fleets.push_back(url); };
        REQUIRE(network.start("fleet-112233").ok());
        started = provisioning.start("FLEET", {fleet_url, asks_code});
        run(10);
    }
    web::Reply post(const std::string &body) {
        web::Client c;
        c.method = HTTP_POST;
        c.body = body;
        const web::Reply reply = web::send(c);
        run(10);
        return reply;
    }
    std::string page() { return web::send({}).body; }
    std::string joined() const { return reinterpret_cast<const char *>(prov::configured.sta.ssid); }

    fleet::esp::EspSystem system;
    fleet::esp::WifiNetwork network{executor, system};
    fleet::esp::Provisioning provisioning{executor, network, system};
    fleet::Status started;
    std::string code;
    std::vector<std::string> fleets;
};

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

esp_err_t prov_session(httpd_req_t *request) {
    return httpd_resp_send(request, "protocol", 8);
}

}  // namespace

TEST_SUITE_BEGIN("setup page");

TEST_CASE("the access point's page has the networks in reach, once each, and the fleet's address") {
    Setup s;
    REQUIRE(s.started.ok());
    const web::Reply r = web::send({});
    CHECK(r.status == 200);
    CHECK(r.headers.at("Content-Type") == "text/html; charset=utf-8");
    CHECK(r.headers.at("Cache-Control") == "no-store");
    const std::size_t first = r.body.find("<option>cafe</option>");
    CHECK(first != std::string::npos);
    CHECK(r.body.find("<option>cafe</option>", first + 1) == std::string::npos);
    CHECK(has(r.body, fleet_url));
    CHECK(r.kept);
}

TEST_CASE("what phones ask first leads to the page, whatever the path and the method") {
    Setup s;
    const struct {
        int method;
        const char *uri, *host;
    } probes[] = {
        {HTTP_GET, "/generate_204", "connectivitycheck.gstatic.com"},
        {HTTP_GET, "/hotspot-detect.html", "captive.apple.com"},
        {HTTP_HEAD, "/", "detectportal.firefox.com"},
        {HTTP_GET, "/", ""},
        {HTTP_GET, "/connecttest.txt?n=1", "www.msftconnecttest.com"},
        {HTTP_PUT, "/", "a-name-that-is-longer-than-the-room-for-it-and-so-on-and-so-on.example.org"},
    };
    for (const auto &p : probes) {
        web::Client c;
        c.method = p.method;
        c.uri = p.uri;
        c.host = p.host;
        const web::Reply r = web::send(c);
        CHECK_MESSAGE(r.status == 302, p.uri, p.host);
        CHECK(r.headers.at("Location") == "http://192.168.4.27/");
        CHECK(r.body.empty() == (p.method == HTTP_HEAD));  // iOS ignores a redirection without a body
    }
}

TEST_CASE("Espressif's protocol has its handlers on the same server, and its end comes first") {
    Setup s;
    REQUIRE(prov::shared_server != nullptr);
    const auto server = *static_cast<httpd_handle_t *>(prov::shared_server);
    for (const char *uri : {"/prov-session", "/proto-ver", "/prov-config", "/prov-scan", "/prov-ctrl"}) {
        httpd_uri_t handler = {};
        handler.uri = uri;
        handler.method = HTTP_POST;
        handler.handler = prov_session;
        REQUIRE(httpd_register_uri_handler(server, &handler) == ESP_OK);
    }
    web::Client c;
    c.method = HTTP_POST;
    c.uri = "/prov-session";
    CHECK(web::send(c).body == "protocol");
    prov::raise(NETWORK_PROV_END);
    s.run(10);
    CHECK(prov::shared_server_ran);
    CHECK_FALSE(web::running);
    CHECK(prov::shared_server == nullptr);
    CHECK(udp::closed == 1);
    REQUIRE(s.provisioning.start("FLEET", {fleet_url, false}).ok());  // and again
    CHECK(web::running);
    s.provisioning.close();
    CHECK_FALSE(web::running);
    CHECK(udp::closed == 2);
}

TEST_CASE("a submitted form goes to the manager; how it ended is on the page") {
    Setup s;
    const web::Reply r = s.post("ssid=office&password=12345678&fleet=");
    CHECK(r.status == 200);
    CHECK(has(r.body, "office"));
    CHECK(s.joined() == "office");
    CHECK(has(s.page(), "trying to join office"));
    prov::raise(NETWORK_PROV_WIFI_CRED_FAIL);
    s.run(10);
    CHECK(has(s.page(), "could not join"));
    prov::configure_result = ESP_FAIL;
    s.post("ssid=home");
    CHECK(s.joined() == "office");
    CHECK(has(s.page(), "try again"));
    CHECK(s.fleets.empty());
}

TEST_CASE("another fleet counts once the Wi-Fi that came with it works") {
    Setup s;
    s.post("ssid=office&fleet=https%3A%2F%2Fother.example%2Fota%2F");
    prov::raise(NETWORK_PROV_WIFI_CRED_FAIL);
    s.run(10);
    prov::raise(NETWORK_PROV_WIFI_CRED_SUCCESS);  // of credentials that came another way
    s.run(10);
    CHECK(s.fleets.empty());
    s.post("ssid=office&fleet=https%3A%2F%2Fother.example%2Fota%2F");
    CHECK(s.fleets.empty());
    prov::raise(NETWORK_PROV_WIFI_CRED_SUCCESS);
    s.run(10);
    CHECK(s.fleets == std::vector<std::string>{"https://other.example/ota/"});
    s.post("ssid=office&fleet=http%3A%2F%2Ffleet.example.org%2Fxiaozhi%2Fota%2F");  // the same as before
    prov::raise(NETWORK_PROV_WIFI_CRED_SUCCESS);
    s.run(10);
    CHECK(s.fleets.size() == 1);
}

TEST_CASE("with a code the page does nothing without it") {
    Setup s(true);
    CHECK(has(s.page(), "name=\"code\""));
    CHECK(s.post("ssid=office").status == 400);
    CHECK(s.joined().empty());
    CHECK(s.post("ssid=office&code=" + s.code).status == 200);
    CHECK(s.joined() == "office");
}

TEST_CASE("a form that comes in pieces is put together") {
    Setup s;
    web::Client c;
    c.method = HTTP_POST;
    c.body = "ssid=office&password=12345678";
    c.piece = 1;
    c.pause_us = 100'000;
    CHECK(web::send(c).status == 200);
    s.run(10);
    CHECK(s.joined() == "office");
}

TEST_CASE("hostile clients lose their connection within seconds, and the page stays") {
    Setup s;
    struct Hostile {
        const char *what;
        web::Client client;
        int status;
    };
    std::vector<Hostile> all(7);
    all[0] = {"a length without a body", {}, 0};
    all[0].client.announced = 1000;
    all[1] = {"a body of a terabyte", {}, 413};
    all[1].client.announced = 1ull << 40;
    all[1].client.body = std::string(5000, 'x');
    all[2] = {"a byte every two seconds", {}, 0};
    all[2].client.body = std::string(1000, 'x');
    all[2].client.piece = 1;
    all[2].client.pause_us = 2'000'000;
    all[3] = {"a reset", {}, 0};
    all[3].client.body = "ssid=office";
    all[3].client.resets = true;
    all[4] = {"a body one byte too long", {}, 413};
    all[4].client.body = "ssid=office&x=" + std::string(fleet::Portal::max_body - 13, 'x');
    all[5] = {"bad coding", {}, 400};
    all[5].client.body = "ssid=%zz%4";
    all[6] = {"another page's path, slowly", {}, 0};
    all[6].client.uri = "/elsewhere";
    all[6].client.body = std::string(900, 'x');
    all[6].client.piece = 1;
    all[6].client.pause_us = 4'900'000;
    for (Hostile &h : all) {
        h.client.method = HTTP_POST;
        const std::int64_t begin = fake::rtos::now_us;
        const web::Reply r = web::send(h.client);
        CHECK_MESSAGE(r.status == h.status, h.what);
        CHECK_MESSAGE(fake::rtos::now_us - begin <= 16'000'000, h.what);
        CHECK_MESSAGE(r.closed, h.what);
        if (h.status != 400) CHECK_MESSAGE(!r.kept, h.what);
        CHECK(s.joined().empty());
        CHECK(web::send({}).status == 200);
    }
}

TEST_CASE("without its page the device is set up by Espressif's app") {
    fake::reset();
    web::start_result = ESP_FAIL;
    fleet::esp::TaskExecutor executor;
    REQUIRE(executor.start().ok());
    fleet::esp::EspSystem system;
    fleet::esp::WifiNetwork network(executor, system);
    fleet::esp::Provisioning provisioning(executor, network, system);
    CHECK(provisioning.start("FLEET", {}).ok());
    CHECK(prov::started);
    CHECK(prov::shared_server == nullptr);
    CHECK(udp::opened == 0);
    provisioning.close();
}

TEST_CASE("DHCP names the device, which answers that every name is its own") {
    Setup s;
    CHECK(fake::dhcp::name_server == 0x1b04a8c0);
    CHECK(fake::dhcp::offer == 2);
    CHECK(fake::dhcp::starts == 1);
    CHECK(udp::port == 53);
    CHECK(udp::address == 0x1b04a8c0);  // on the access point alone
    const std::string query("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01h\x00\x00\x01\x00\x01", 19);
    udp::incoming = {query, "", std::string(600, '\xff'), query};
    s.run(100);
    REQUIRE(udp::sent.size() == 2);
    CHECK(udp::sent[1].substr(udp::sent[1].size() - 4) == "\xc0\xa8\x04\x1b");
    udp::incoming.assign(1000, query);  // a flood does not stop the rest of the device
    s.run(100);
    CHECK(udp::sent.size() < 30);
    s.provisioning.close();
    const std::size_t before = udp::sent.size();
    s.run(1000);
    CHECK(udp::sent.size() == before);
}

TEST_CASE("a name server that does not start costs the page nothing") {
    fake::reset();
    udp::bind_result = ESP_FAIL;
    fleet::esp::TaskExecutor executor;
    REQUIRE(executor.start().ok());
    fleet::esp::EspSystem system;
    fleet::esp::WifiNetwork network(executor, system);
    fleet::esp::Provisioning provisioning(executor, network, system);
    CHECK(provisioning.start("FLEET", {}).ok());
    CHECK(udp::closed == 1);
    CHECK(web::send({}).status == 200);
    provisioning.close();
    CHECK(udp::closed == 1);
}

TEST_SUITE_END();
