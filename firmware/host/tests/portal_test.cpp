// SPDX-License-Identifier: Apache-2.0
#include "fleet/portal.hpp"
#include "fleet/captive_dns.hpp"

#include <doctest/doctest.h>

using namespace fleet;

namespace {

const char own_address[] = "192.168.4.1";
constexpr std::array<std::uint8_t, 4> address = {192, 168, 4, 1};

bool has(const std::string &text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

struct PortalFixture {
    explicit PortalFixture(const char *code = "") : portal(own_address, code, "http://fleet.example.org/xiaozhi/ota/") {
        portal.use = [this](const PortalInput &w) {
            taken.push_back(w);
            return result;
        };
    }
    PortalAnswer post(std::string_view body) { return portal.handle({"POST", "/", own_address, body}); }

    Portal portal;
    std::vector<PortalInput> taken;
    Status result;
};

std::string ask(std::string_view name, char type = 1, char klass = 1) {
    std::string query("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00", 12);
    while (!name.empty()) {
        const std::string_view label = name.substr(0, name.find('.'));
        query += static_cast<char>(label.size());
        query += label;
        name.remove_prefix(label.size() < name.size() ? label.size() + 1 : label.size());
    }
    return query + std::string(1, '\0') + std::string{'\0', type, '\0', klass};
}

std::string answer(const std::string &query, std::size_t room = max_dns_message) {
    std::vector<std::uint8_t> out(room);
    const std::size_t n = answer_dns(Bytes(query), address, {out.data(), out.size()});
    return std::string(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n));
}

}  // namespace

TEST_SUITE("portal") {
    TEST_CASE("which requests get what") {
        const struct {
            const char *method, *path, *host;
            int status;
        } cases[] = {
            {"GET", "/", own_address, 200},
            {"GET", "/?from=phone", own_address, 200},
            {"GET", "/generate_204", "connectivitycheck.gstatic.com", 302},
            {"GET", "/hotspot-detect.html", "captive.apple.com", 302},
            {"GET", "/connecttest.txt", "www.msftconnecttest.com", 302},
            {"GET", "/", "", 302},
            {"POST", "/", "evil.example", 302},  // a page elsewhere, open in the same browser
            {"GET", "/etc/passwd", own_address, 404},
            {"GET", "/../", own_address, 404},
            {"GET", "", own_address, 404},
            {"DELETE", "/", own_address, 405},
            {"get", "/", own_address, 405},
            {"", "/", own_address, 405},
        };
        PortalFixture f;
        for (const auto &c : cases) {
            const PortalAnswer a = f.portal.handle({c.method, c.path, c.host, "ssid=lab"});
            CHECK_MESSAGE(a.status == c.status, c.method, c.path, c.host);
            CHECK((a.location == (c.status == 302 ? "http://192.168.4.1/" : "")));
        }
        CHECK(f.taken.empty());
    }

    TEST_CASE("the page is small, has what is known, and nothing from the air runs in it") {
        PortalFixture f;
        f.portal.networks = {"lab", "<script>alert('x')</script>", "a\"b&c"};
        const PortalAnswer a = f.portal.handle({"GET", "/", own_address, ""});
        CHECK(a.body.size() < 2048);
        CHECK(has(a.body, "<option>lab</option>"));
        CHECK(has(a.body, "<option>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;</option>"));
        CHECK(has(a.body, "<option>a&quot;b&amp;c</option>"));
        CHECK(has(a.body, "value=\"http://fleet.example.org/xiaozhi/ota/\""));
        CHECK_FALSE(has(a.body, "name=\"code\""));
        CHECK_FALSE(has(a.body, "<script"));
        CHECK_FALSE(has(a.body, "role="));
        f.portal.notice = "<lab> refused it";
        CHECK(has(f.portal.handle({"GET", "/", own_address, ""}).body, "<b>&lt;lab&gt; refused it</b>"));
    }

    TEST_CASE("what is posted is decoded and used") {
        PortalFixture f;
        const PortalAnswer a =
            f.post("ssid=My+%26+Caf%C3%A9&password=p%2Bss+w0rd&fleet=https%3A%2F%2Ff.example%2Fota%2F&x=1");
        CHECK(a.status == 200);
        CHECK(has(a.body, "My &amp; Caf\xC3\xA9"));
        CHECK_FALSE(has(a.body, "w0rd"));
        REQUIRE(f.taken.size() == 1);
        CHECK(f.taken[0].ssid == "My & Caf\xC3\xA9");
        CHECK(f.taken[0].password == "p+ss w0rd");
        CHECK(f.taken[0].fleet == "https://f.example/ota/");
        CHECK(f.post("ssid=open").status == 200);
        CHECK(f.taken[1].password.empty());
        CHECK(f.taken[1].fleet.empty());
        f.result = {Code::busy, "the <radio> is busy"};
        CHECK(has(f.post("ssid=open").body, "the &lt;radio&gt; is busy"));
        f.portal.use = nullptr;
        CHECK(f.post("ssid=open").status == 400);
    }

    TEST_CASE("the bounds of each field") {
        const std::string s32(32, 's'), hex(64, 'a');
        const std::string url = "http://h/" + std::string(255 - 9, 'p');
        PortalFixture f;
        for (const std::string &good :
             {"ssid=" + s32, std::string("ssid=s&password=12345678"), "ssid=s&password=" + std::string(63, 'p'),
              "ssid=s&password=" + hex, "ssid=s&fleet=" + url}) {
            CHECK_MESSAGE(f.post(good).status == 200, good);
        }
        f.taken.clear();
        for (const std::string &bad :
             {std::string(""), std::string("ssid="), std::string("ssid"), "ssid=s" + s32,
              std::string("ssid=s&password=1234567"), "ssid=s&password=g" + hex.substr(1), "ssid=s&password=a" + hex,
              std::string("ssid=s&fleet=fleet.example.org"), std::string("ssid=s&fleet=javascript:alert(1)"),
              std::string("ssid=s&fleet=http://u@h/"), "ssid=s&fleet=" + url + "p"}) {
            CHECK_MESSAGE(f.post(bad).status == 400, bad);
        }
        CHECK(f.taken.empty());
    }

    TEST_CASE("forms that no page sends") {
        PortalFixture f;
        for (const char *const bad : {"ssid=a&ssid=b", "ssid=a&password=12345678&password=12345678", "ssid=%",
                                      "ssid=%4", "ssid=%zz", "ssid=%4z", "ssid=a%00b", "ssid=a%0d%0ab", "ssid=a%7f",
                                      "ssid=a\nb", "%73sid=a", "&&&", "=a", "=", "&=&ssid"}) {
            CHECK_MESSAGE(f.post(bad).status == 400, bad);
        }
        CHECK(f.post("ssid=a&x=" + std::string(Portal::max_body - 9, 'x')).status == 200);
        CHECK(f.post("ssid=a&x=" + std::string(Portal::max_body - 8, 'x')).status == 413);
        CHECK(f.taken.size() == 1);
    }

    TEST_CASE("with a code nothing is taken without it, and it cannot be guessed") {
        PortalFixture f("AB23CD45");
        CHECK(has(f.portal.handle({"GET", "/", own_address, ""}).body, "name=\"code\""));
        CHECK(f.post("ssid=lab").status == 400);
        CHECK(f.post("ssid=lab&code=AB23CD4").status == 400);
        CHECK(f.post("ssid=lab&code=AB23CD45").status == 200);
        CHECK(f.taken.size() == 1);
        for (int i = 3; i < Portal::max_code_attempts; i++)
            CHECK(has(f.post("ssid=lab&code=AB23CD46").body, "not the one"));
        CHECK(has(f.post("ssid=lab&code=AB23CD45").body, "Too many") == false);
        CHECK(f.post("ssid=lab&code=AB23CD46").status == 400);
        CHECK(has(f.post("ssid=lab&code=AB23CD45").body, "Too many"));
        CHECK(f.taken.size() == 2);
        // What is said of the rest is said only to who has the code.
        CHECK_FALSE(has(f.post("ssid=").body, "1 to 32"));
    }

    TEST_CASE("every name has the device's address") {
        const std::string query = ask("connectivitycheck.gstatic.com");
        const std::string a = answer(query);
        REQUIRE(a.size() == query.size() + 16);
        CHECK(a.substr(0, 12) == std::string("\x12\x34\x85\x00\x00\x01\x00\x01\x00\x00\x00\x00", 12));
        CHECK(a.substr(12, query.size() - 12) == query.substr(12));
        CHECK(a.substr(query.size()) ==
              std::string("\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x0a\x00\x04\xc0\xa8\x04\x01", 16));
        CHECK(answer(ask("")).size() == 17 + 16);  // the root
        // An IPv6 address, another class: the name is there, the record is not.
        for (const std::string &other : {ask("h.example", 28), ask("h.example", 1, 3)}) {
            CHECK(answer(other).size() == other.size());
            CHECK(answer(other)[7] == 0);
        }
        CHECK(answer(query + "OPT record").size() == query.size() + 16);  // EDNS is left out
        CHECK(answer(query, query.size() + 16).size() == query.size() + 16);
        CHECK(answer(query, query.size() + 15).empty());
    }

    TEST_CASE("queries that are none") {
        const std::string query = ask("h.example");
        for (std::size_t n = 0; n < query.size(); n++)
            CHECK(answer(query.substr(0, n)).empty());
        for (const auto &[at, value] : {std::pair<std::size_t, char>{2, '\x81'},
                                        {2, '\x29'},
                                        {5, '\0'},
                                        {5, '\2'},
                                        {4, '\1'},
                                        {12, '\x40'},
                                        {12, '\xc0'},
                                        {12, '\x3f'}}) {
            std::string bad = query;
            bad[at] = value;
            CHECK_MESSAGE(answer(bad).empty(), at);
        }
        const std::string longest = ask(std::string(63, 'a') + "." + std::string(63, 'b') + "." + std::string(63, 'c') +
                                        "." + std::string(61, 'd'));
        CHECK(answer(longest).size() == longest.size() + 16);
        CHECK(answer(ask(std::string(63, 'a') + "." + std::string(63, 'b') + "." + std::string(63, 'c') + "." +
                         std::string(63, 'd') + ".e"))
                  .empty());
        CHECK(answer(query + std::string(max_dns_message, 'x')).empty());
        CHECK(answer(std::string(max_dns_message, '\xff')).empty());
    }
}
