// SPDX-License-Identifier: Apache-2.0
#include "fleet/boot.hpp"
#include "machine.hpp"
#include "sodium_crypto.hpp"
#include "vectors.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

const char poll_url[] = "http://fleet.example.org/ota/";
const char activate_url[] = "http://fleet.example.org/ota/activate";
const char claimed_answer[] = "{\"mqtt\":{\"endpoint\":\"h:1883\",\"publish_topic\":\"t\"}}";
const char unclaimed_answer[] = "{\"activation\":{\"code\":\"482913\",\"message\":\"m\",\"challenge\":\"f3b0c2d4e5\"}}";

JsonDocument body_of(const FakeMachine &m, const std::string &uuid) {
    std::string text(4096, '\0');
    JsonWriter w(text.data(), text.size());
    write_poll_body(w, m.machine, uuid);
    REQUIRE_FALSE(w.overflow());
    Result<JsonDocument> d = JsonDocument::parse(w.view());
    REQUIRE(d.ok());
    return std::move(d.value());
}

Result<PollAnswer> answer_to(std::string_view text) {
    PollAnswer answer;
    const Status s = parse_poll_answer(text, answer);
    return s.ok() ? Result<PollAnswer>(answer) : s;
}

}  // namespace

TEST_SUITE("boot") {
    TEST_CASE("the body has what stock bodies have, escaped") {
        FakeMachine m;
        m.network.name = "Bob\"s net\\";
        const JsonDocument mine = body_of(m, "u");
        CHECK(mine.root().member("board").member("ssid").text() == "Bob\"s net\\");
        const JsonDocument doc = load_vectors("ota_check.json");
        const JsonDocument stock =
            std::move(JsonDocument::parse(doc.root().member("requests").first().member("body").text()).value());
        CHECK(mine.root().member("chip_info").integer_or("model", -1) == 9);
        CHECK(mine.root().text("reset_reason") == "power_on");
        for (JsonView v = stock.root().first(); v.exists(); v = v.next()) {
            CAPTURE(std::string(v.key()));
            const JsonView own = mine.root().member(std::string(v.key()).c_str());
            CHECK(own.is_object() == v.is_object());
            CHECK(own.is_array() == v.is_array());
            CHECK(own.is_string() == v.is_string());
            CHECK(own.is_number() == v.is_number());
            for (JsonView inner = v.first(); v.is_object() && inner.exists(); inner = inner.next()) {
                CAPTURE(std::string(inner.key()));
                CHECK(own.member(std::string(inner.key()).c_str()).is_string() == inner.is_string());
                CHECK(own.member(std::string(inner.key()).c_str()).is_number() == inner.is_number());
            }
        }
    }

    TEST_CASE("a partition table that is no JSON does not spoil the body") {
        FakeMachine m;
        m.system.partitions = "[{";
        CHECK(body_of(m, "u").root().member("partition_table").is_array());
        m.machine.display = nullptr;
        m.machine.network = nullptr;
        m.machine.updater = nullptr;
        CHECK_FALSE(body_of(m, "u").root().member("display").exists());
    }

    TEST_CASE("the UUID is made once") {
        FakeMachine m;
        const std::string uuid = client_id(m.store, m.system);
        CHECK(uuid.size() == 36);
        CHECK(uuid[14] == '4');
        CHECK(std::string("89ab").find(uuid[19]) != std::string::npos);
        CHECK(client_id(m.store, m.system) == uuid);
        // Each byte is random, except for those six bits.
        FakeMachine other;
        other.system.seed = 2;
        const std::string second = client_id(other.store, other.system);
        int same_bytes = 0;
        for (const std::size_t at : {0u, 2u, 4u, 6u, 9u, 11u, 14u, 16u, 19u, 21u, 24u, 26u, 28u, 30u, 32u, 34u})
            same_bytes += uuid.substr(at, 2) == second.substr(at, 2);
        CHECK(same_bytes < 3);
        CHECK(uuid.substr(16, 2) != uuid.substr(19, 2));
        CHECK(uuid.substr(17, 1) != uuid.substr(20, 1));
    }

    TEST_CASE("headers, with and without a serial number") {
        FakeMachine m;
        PollAnswer answer;
        m.http.answers[poll_url] = {{200, claimed_answer, false}};
        CHECK(poll_server(m.machine, poll_url, "u", answer).ok());
        CHECK(m.http.headers["Device-Id"] == "a0:85:e3:11:22:33");
        CHECK(m.http.headers["Client-Id"] == "u");
        CHECK(m.http.headers["User-Agent"] == "fleet-devkit-s3/1.0.0");
        CHECK(m.http.headers["Activation-Version"] == "1");
        CHECK(m.http.headers.count("Serial-Number") == 0);
        m.machine.identity = &m.identity;
        CHECK(poll_server(m.machine, poll_url, "u", answer).ok());
        CHECK(m.http.headers["Activation-Version"] == "2");
        CHECK(m.http.headers["Serial-Number"] == m.identity.number);
    }

    TEST_CASE("the signature over a challenge is the one that the server expects") {
        const JsonDocument doc = load_vectors("device_key.json");
        const JsonView v = doc.root();
        FakeMachine m;
        SodiumCrypto crypto;
        m.machine.crypto = &crypto;
        m.store.values["s:device_key"] = std::string(v.text("seed"));
        const std::string uuid(v.text("client_id"));
        CHECK(key_message("a0:85:e3:11:22:33", uuid, v.text("challenge")) == v.text("message"));
        const KeyProof proof = prove_key(m.machine, uuid, std::string(v.text("challenge")));
        CHECK(proof.key == v.text("public_key"));
        CHECK(proof.signature == v.text("signature"));
        CHECK(proof.challenge == v.text("challenge"));
        CHECK(prove_key(m.machine, uuid, "").signature.empty());
    }

    TEST_CASE("the password of a CONNECT is the one that the server expects") {
        const JsonDocument doc = load_vectors("device_key.json");
        const JsonView v = doc.root().member("connect");
        FakeMachine m;
        SodiumCrypto crypto;
        m.machine.crypto = &crypto;
        m.store.values["s:device_key"] = std::string(doc.root().text("seed"));
        m.clock.set_unix_ms(v.integer_or("unix_ms", 0), 0);
        BrokerSettings broker;
        broker.client_id = v.text("client_id");
        broker.username = v.text("username");
        broker.password = v.text("password");
        CHECK(connect_password(m.machine, broker) == broker.password);  // a broker that does not ask
        broker.sign_connect = true;
        CHECK(connect_message(broker, "1795468800123") == v.text("message"));
        CHECK(connect_password(m.machine, broker) == v.text("sent"));
        m.machine.crypto = nullptr;
        CHECK(connect_password(m.machine, broker) == broker.password);
    }

    TEST_CASE("the device proves its key where the server asks for it") {
        FakeMachine m;
        SodiumCrypto crypto;
        m.machine.crypto = &crypto;
        PollAnswer answer;
        m.http.answers[poll_url] = {{200, "{\"device_key\":{\"challenge\":\"c1\"}}", false},
                                    {200, claimed_answer, false}};
        CHECK(poll_server(m.machine, poll_url, "u", answer).ok());
        CHECK(answer.broker_status.ok());
        CHECK(m.http.headers["Device-Key-Challenge"] == "c1");
        CHECK(m.http.headers["Device-Key-Signature"].size() == 88);
        const std::string key = m.http.headers["Device-Key"];
        CHECK(key.size() == 44);
        CHECK(prove_key(m.machine, "u", "").key == key);  // made once
        // A server that asks again and again is asked no more.
        m.http.answers[poll_url] = {{200, "{\"device_key\":{\"challenge\":\"c2\"}}", false}};
        CHECK(poll_server(m.machine, poll_url, "u", answer).ok());
        CHECK_FALSE(answer.broker_status.ok());
        // A key that flash does not keep is not used.
        m.store.values.clear();
        m.store.full = true;
        CHECK(prove_key(m.machine, "u", "c").key.empty());
        m.machine.crypto = nullptr;
        CHECK(prove_key(m.machine, "u", "c").key.empty());
    }

    TEST_CASE("the client's id is made once, and anew if it is damaged") {
        FakeMachine m;
        const std::string id = client_id(m.store, m.system);
        CHECK(id.size() == 36);
        CHECK(client_id(m.store, m.system) == id);
        m.store.values["s:uuid"] = "short";
        const std::string other = client_id(m.store, m.system);
        CHECK(other.size() == 36);
        CHECK(other != id);
        CHECK(m.store.values["s:uuid"] == other);
    }

    TEST_CASE("activation bodies") {
        FakeMachine m;
        m.http.answers[activate_url] = {{202, "", false}};
        CHECK(activate(m.machine, poll_url, "u", "c").value() == 202);
        CHECK(m.http.posted.back() == std::string(activate_url) + "\n{}");
        m.machine.identity = &m.identity;
        CHECK(activate(m.machine, "http://fleet.example.org/ota", "u", "f3b0c2d4e5").value() == 202);
        CHECK(m.http.posted.back() ==
              std::string(activate_url) +
                  "\n{\"algorithm\":\"hmac-sha256\",\"serial_number\":\"SN-0123456789ABCDEF0123456789AB-\","
                  "\"challenge\":\"f3b0c2d4e5\",\"hmac\":\"" +
                  std::string(64, 'e') + "\"}");
        m.identity.code = "";
        CHECK(activate(m.machine, poll_url, "u", "c").value() == 202);  // by its code alone
        CHECK(m.http.posted.back() == std::string(activate_url) + "\n{}");
        m.identity.failure = {Code::io, "the fuses were not read"};
        CHECK(activate(m.machine, poll_url, "u", "c").status().code == Code::io);
    }

    TEST_CASE("a job that the server names is kept, one too long for it is not") {
        const auto job = [](const std::string &name) {
            const std::string text =
                "{\"firmware\":{\"version\":\"2\",\"url\":\"http://h/x\",\"job\":\"" + name + "\"}}";
            return answer_to(text).value().firmware.job;
        };
        CHECK(job("0199f1c2-7d1e-7c5b-9a57-1f6a0c3f5e11.2") == "0199f1c2-7d1e-7c5b-9a57-1f6a0c3f5e11.2");
        CHECK(job(std::string(max_job, 'j')).size() == max_job);
        CHECK(job(std::string(max_job + 1, 'j')).empty());
    }

    TEST_CASE("an offer of an image is read whole") {
        const std::string hash(64, 'a'), signature(88, 's');
        const std::string text = "{\"firmware\":{\"version\":\"2.1\",\"url\":\"http://h/x\",\"sha256\":\"" + hash +
                                 "\",\"size\":7,\"force\":1,\"manifest\":\"{}\",\"signature\":\"" + signature + "\"}}";
        const Result<PollAnswer> answer = answer_to(text);
        const FirmwareOrder &order = answer.value().firmware;
        CHECK(order.version == "2.1");
        CHECK(order.url == "http://h/x");
        CHECK(order.sha256 == hash);
        CHECK(order.size == 7);
        CHECK(order.force);
        CHECK(order.manifest == "{}");
        CHECK(order.signature == signature);
    }

    TEST_CASE("every answer of the vectors is read without harm") {
        const JsonDocument doc = load_vectors("ota_check.json");
        for (JsonView r = doc.root().member("responses").first(); r.exists(); r = r.next()) {
            const std::string name = text_of(r.member("name"));
            CAPTURE(name);
            const Result<PollAnswer> a = answer_to(r.member("body").text());
            if (!a.ok()) {
                CHECK(name.find("FORBIDDEN") == 0);
                continue;
            }
            if (name == "unclaimed device") {
                CHECK(a.value().activation.code == "482913");
                CHECK(a.value().broker_status.code == Code::not_found);
                CHECK(a.value().time.unix_ms == 1786147200000);
                CHECK(a.value().time.zone_minutes == 480);
            }
            if (name == "claimed device, nothing to install") {
                CHECK(a.value().broker.host == "fleet.example.org");
                CHECK(a.value().broker.port == 1883);
                CHECK(a.value().broker.keepalive_s == 60);
                CHECK_FALSE(a.value().firmware.due());
            }
            if (name == "upgrade due") CHECK(a.value().firmware.due());
            if (name == "forced reinstall/downgrade, once") CHECK(a.value().firmware.force);
            if (name.find("version") != std::string::npos) CHECK_FALSE(a.value().firmware.due());
            if (name == "FORBIDDEN: endpoint as URL") CHECK_FALSE(a.value().broker_status.ok());
            if (name == "FORBIDDEN: mqtt key over 15 characters") CHECK(a.value().broker_status.ok());
        }
    }

    TEST_CASE("sections that make no sense are left out") {
        const struct {
            const char *mqtt;
            bool usable;
        } cases[] = {
            {"{\"endpoint\":\"h\",\"publish_topic\":\"t\"}", true},
            {"{\"endpoint\":\"h:8883\",\"publish_topic\":\"t\",\"keepalive\":\"60\"}", true},
            {"{\"endpoint\":\"h:abc\",\"publish_topic\":\"t\"}", false},
            {"{\"endpoint\":\"[::1]:1883\",\"publish_topic\":\"t\"}", false},
            {"{\"endpoint\":\"h/path\",\"publish_topic\":\"t\"}", false},
            {"{\"endpoint\":\"\",\"publish_topic\":\"t\"}", false},
            {"{\"endpoint\":5,\"publish_topic\":\"t\"}", false},
            {"{\"endpoint\":\"h\"}", false},
            {"{\"endpoint\":\"h\",\"publish_topic\":\"a/#\"}", false},
            {"[]", false},
            {"null", false},
        };
        for (const auto &c : cases) {
            CAPTURE(c.mqtt);
            const Result<PollAnswer> a = answer_to("{\"mqtt\":" + std::string(c.mqtt) + "}");
            REQUIRE(a.ok());
            CHECK(a.value().broker_status.ok() == c.usable);
        }
        CHECK(answer_to("{\"mqtt\":{\"endpoint\":\"h\",\"publish_topic\":\"t\"}}").value().broker.port == 8883);
        CHECK(answer_to("{\"mqtt\":{\"endpoint\":\"h\",\"publish_topic\":\"t\",\"keepalive\":1}}")
                  .value()
                  .broker.keepalive_s == 10);
        CHECK(answer_to("{\"mqtt\":{\"endpoint\":\"h\",\"publish_topic\":\"t\",\"keepalive\":99999}}")
                  .value()
                  .broker.keepalive_s == 3600);
        const auto zone = [](const char *minutes) {
            return answer_to("{\"server_time\":{\"timestamp\":1786147200000,\"timezone_offset\":" +
                             std::string(minutes) + "}}")
                .value()
                .time.zone_minutes;
        };
        CHECK(answer_to("{\"server_time\":{\"timestamp\":1786147200000}}").value().time.zone_minutes == 0);
        CHECK(zone("1440") == 1440);
        CHECK(zone("-1440") == -1440);
        CHECK(zone("1441") == 0);
        CHECK(zone("-1441") == 0);
        const auto time = [](const char *ms) {
            return answer_to("{\"server_time\":{\"timestamp\":" + std::string(ms) + "}}").value().time.unix_ms;
        };
        CHECK(time("4102444800000") == 4102444800000);
        CHECK(time("4102444800001") == 0);
        const auto password = [](std::size_t size) {
            return answer_to("{\"mqtt\":{\"endpoint\":\"h\",\"publish_topic\":\"t\",\"password\":\"" +
                             std::string(size, 'x') + "\"}}")
                .value()
                .broker.password.size();
        };
        CHECK(password(1024) == 1024);
        CHECK(password(1025) == 0);
        CHECK_FALSE(answer_to("[]").ok());
        CHECK_FALSE(answer_to("").ok());
        CHECK(answer_to("{\"server_time\":{\"timestamp\":5,\"timezone_offset\":99999}}").value().time.unix_ms == 0);
        CHECK(answer_to("{\"server_time\":{\"timestamp\":1786147200000,\"timezone_offset\":99999}}")
                  .value()
                  .time.zone_minutes == 0);
        CHECK_FALSE(answer_to("{\"firmware\":{\"version\":\"1.0\",\"url\":\"file:///etc\"}}").value().firmware.due());
        CHECK_FALSE(answer_to("{\"firmware\":{\"version\":\"1.0\",\"url\":\"http://h/x\",\"force\":true}}")
                        .value()
                        .firmware.force);
    }

    TEST_CASE("broker settings are saved and read back") {
        BrokerSettings s{"h", 1883, "c\"", "u", "p\\", "t", 60};
        BrokerSettings back;
        REQUIRE(read_broker(save_broker(s), back).ok());
        CHECK(back.client_id == "c\"");
        CHECK(back.password == "p\\");
        CHECK(back.port == 1883);
        CHECK_FALSE(back.sign_connect);
        s.sign_connect = true;
        CHECK(read_broker(save_broker(s), back).ok());
        CHECK(back.sign_connect);
        CHECK_FALSE(read_broker("x", back).ok());
        s.password = std::string(5000, 'x');
        CHECK(save_broker(s).empty());
    }

    TEST_CASE("from the code on the screen to the broker") {
        FakeMachine m;
        m.http.answers[poll_url] = {{200, unclaimed_answer, false}, {200, claimed_answer, false}};
        m.http.answers[activate_url] = {{202, "", false}, {500, "", false}, {0, "", true}, {200, "", false}};
        Boot boot(m.machine, poll_url);
        std::string code;
        int activated = 0;
        std::string host;
        boot.on_code = [&](const Activation &a) { code = a.code; };
        boot.on_activated = [&] { activated++; };
        boot.on_answer = [&](const PollAnswer &a) { host = a.broker.host; };
        boot.start();
        m.executor.settle();
        CHECK(code == "482913");
        CHECK_FALSE(boot.done());
        m.executor.run_for(2'999);
        CHECK(m.http.posted.size() == 2);
        m.executor.run_for(1);
        CHECK(m.http.posted.size() == 3);  // then an error: ten seconds, twice
        m.executor.run_for(19'999);
        CHECK(activated == 0);
        m.executor.run_for(1);
        CHECK(activated == 1);
        CHECK(boot.done());
        CHECK(host == "h");
    }

    TEST_CASE("after ten asks the device polls again: its code may be old") {
        FakeMachine m;
        m.http.answers[poll_url] = {{200, unclaimed_answer, false}};
        m.http.answers[activate_url] = {{202, "", false}};
        Boot boot(m.machine, poll_url);
        int codes = 0;
        boot.on_code = [&](const Activation &) { codes++; };
        boot.start();
        m.executor.run_for(29'999);
        CHECK(codes == 1);
        m.executor.run_for(1);
        CHECK(codes == 2);
    }

    TEST_CASE("polls that fail are tried again with back-off") {
        FakeMachine m;
        m.http.answers[poll_url] = {{0, "", true}, {503, "", false}, {200, "{", false}, {200, claimed_answer, false}};
        Boot boot(m.machine, poll_url);
        int failed = 0;
        boot.on_failed = [&](Status, int n) { failed = n; };
        boot.start();
        m.executor.run_for(60'000);
        CHECK(failed == 3);
        CHECK(boot.done());
        CHECK(boot.failures() == 0);
    }

    TEST_CASE("a second start polls anew, and takes the place of the attempt that was planned") {
        FakeMachine m;
        m.http.answers[poll_url] = {{0, "", true}, {200, claimed_answer, false}};
        Boot boot(m.machine, poll_url);
        boot.start();
        m.executor.settle();
        CHECK_FALSE(boot.done());
        boot.start();
        m.executor.settle();
        CHECK(boot.done());
        m.executor.run_for(60'000);
        CHECK(m.http.posted.size() == 2);
        boot.start();
        CHECK_FALSE(boot.done());  // until it is answered
        m.executor.settle();
        CHECK(boot.done());
    }
}
