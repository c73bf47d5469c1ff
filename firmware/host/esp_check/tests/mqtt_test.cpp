// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/esp_clock.hpp"
#include "fleet_esp/mqtt_transport.hpp"
#include "fleet_esp/nvs_store.hpp"

using fleet::BrokerSettings;
using fleet::Bytes;
using fleet::TransportState;
using fleet::esp::MqttOptions;
using fleet::esp::MqttTransport;
namespace mqtt = fake::mqtt;

namespace {

struct Link : Bench {
    Link() {
        transport.on_message = [this](Bytes m) { messages.emplace_back(m.text()); };
        transport.on_state = [this](TransportState s, fleet::Status why) {
            states.push_back(s);
            last_why = why;
        };
    }
    mqtt::Client &start(const BrokerSettings &settings) {
        REQUIRE(transport.start(settings, "fleet/will", "gone").ok());
        run(1);
        return mqtt::last();
    }
    mqtt::Client &connect() {
        mqtt::Client &client = start(broker());
        mqtt::up(client);
        run(1);
        return client;
    }
    static BrokerSettings broker() {
        BrokerSettings s;
        s.host = "fleet.example.org";
        s.port = 1883;
        s.client_id = "a0_85_e3_11_22_33";
        s.username = "user";
        s.password = "secret";
        return s;
    }

    MqttTransport transport{executor, MqttOptions{}};
    std::vector<std::string> messages;
    std::vector<TransportState> states;
    fleet::Status last_why;
};

}  // namespace

TEST_SUITE_BEGIN("mqtt");

TEST_CASE("the settings reach the client, which does not reconnect by itself") {
    Link link;
    const mqtt::Client &client = link.start(Link::broker());
    CHECK(client.host == "fleet.example.org");
    CHECK(client.port == 1883);
    CHECK_FALSE(client.tls);
    CHECK(client.client_id == "a0_85_e3_11_22_33");
    CHECK(client.username == "user");
    CHECK(client.password == "secret");
    CHECK(client.will_topic == "fleet/will");
    CHECK(client.will == "gone");
    CHECK(client.keepalive == 60);
    CHECK_FALSE(client.reconnects);
    CHECK(client.started);
}

TEST_CASE("port 8883 is TLS, checked by the bundle or by the authority given") {
    Link link;
    BrokerSettings settings = Link::broker();
    settings.port = 8883;
    settings.username.clear();
    const mqtt::Client &client = link.start(settings);
    CHECK(client.tls);
    CHECK((client.attach == fleet::esp::ServerTrust{}.attach()));
    CHECK_FALSE(client.has_username);

    MqttOptions options;
    options.trust.ca_pem = "PEM";
    MqttTransport own(link.executor, options);
    REQUIRE(own.start(settings, {}, {}).ok());
    link.run(1);
    CHECK(mqtt::last().tls);
    CHECK((mqtt::last().attach == options.trust.attach()));
    CHECK(mqtt::last().will_topic.empty());
}

TEST_CASE("a connection over TLS confirms the date, and no other") {
    for (const std::uint16_t port : {1883, 8883}) {
        Link link;
        fleet::esp::NvsStore store;
        REQUIRE(store.open("fleet").ok());
        fleet::esp::EspClock clock;
        clock.remember(store, link.executor);
        clock.set_unix_ms(1786147200000, 0);
        BrokerSettings settings = Link::broker();
        settings.port = port;
        mqtt::up(link.start(settings));
        link.run(11 * 60 * 1000);
        CHECK(store.get_int(fleet::esp::EspClock::key).ok() == (port == 8883));
    }
}

TEST_CASE("states are told on the executor") {
    Link link;
    mqtt::Client &client = link.start(Link::broker());
    link.run(1);
    CHECK(link.states == std::vector<TransportState>{TransportState::connecting});
    mqtt::up(client);
    CHECK(link.states.size() == 1);
    link.run(1);
    CHECK(link.states == std::vector<TransportState>{TransportState::connecting, TransportState::up});
    mqtt::down(client);
    link.run(1);
    CHECK(link.states.back() == TransportState::down);
    CHECK(name_of(link.last_why) == "unavailable");
}

TEST_CASE("wrong credentials are a refusal, a busy broker is not") {
    Link link;
    mqtt::refuse(link.start(Link::broker()), MQTT_CONNECTION_REFUSE_NOT_AUTHORIZED);
    link.run(1);
    CHECK(link.states.back() == TransportState::refused);
    CHECK(name_of(link.last_why) == "refused");
    mqtt::refuse(link.start(Link::broker()), MQTT_CONNECTION_REFUSE_SERVER_UNAVAILABLE);
    link.run(1);
    CHECK(link.states.back() == TransportState::down);
}

TEST_CASE("a message in pieces arrives whole") {
    Link link;
    mqtt::Client &client = link.connect();
    const std::string text(2500, 'x');
    mqtt::message(client, text, 1024);
    mqtt::message(client, "short");
    mqtt::message(client, "");
    link.run(1);
    CHECK(link.messages == std::vector<std::string>{text, "short", ""});
}

TEST_CASE("a message that is too long is refused, the next one is not") {
    Link link;
    int refused = 0;
    link.transport.on_too_long = [&refused] { refused++; };
    mqtt::Client &client = link.connect();
    mqtt::message(client, std::string(8193, 'x'));
    mqtt::message(client, std::string(8192, 'y'));
    link.run(1);
    REQUIRE(link.messages.size() == 1);
    CHECK(link.messages[0].size() == 8192);
    CHECK(refused == 1);
}

TEST_CASE("a flood is dropped beyond what may wait, and what comes later is heard") {
    Link link;
    mqtt::Client &client = link.connect();
    for (int i = 0; i < 1000; i++)
        mqtt::message(client, std::string(4000, 'x'));
    for (int i = 0; i < 1000; i++)
        mqtt::message(client, "");
    link.run(1);
    CHECK(link.messages.size() >= 4);
    CHECK(link.messages.size() < 100);
    link.messages.clear();
    mqtt::message(client, "after");
    link.run(1);
    CHECK(link.messages == std::vector<std::string>{"after"});
}

TEST_CASE("what an old connection says later is not heard") {
    Link link;
    mqtt::Client &old = link.connect();
    mqtt::message(old, "late");
    mqtt::down(old);
    link.transport.stop(false);
    link.run(100);
    CHECK(link.messages.empty());
    CHECK(link.states.back() == TransportState::up);
    CHECK(old.stopped);
    CHECK(old.destroyed);
    CHECK_FALSE(old.disconnected);
}

TEST_CASE("stop says goodbye if asked to, and once") {
    Link link;
    mqtt::Client &client = link.connect();
    int stopped = 0;
    link.transport.on_stopped = [&] { ++stopped; };
    link.transport.stop(true);
    CHECK(stopped == 0);
    link.run(100);
    CHECK(client.disconnected);
    CHECK(stopped == 1);
    link.transport.stop(true);
    link.run(100);
    CHECK(mqtt::clients.size() == 1);
    CHECK(stopped == 2);
}

TEST_CASE("publishing needs a connection and room") {
    Link link;
    CHECK(name_of(link.transport.publish("t", Bytes("x"), 0, false)) == "unavailable");
    mqtt::Client &client = link.connect();
    REQUIRE(link.transport.publish("up", Bytes("text"), 1, true).ok());
    REQUIRE(link.transport.publish("up", Bytes(), 0, true).ok());
    link.run(100);
    REQUIRE(client.sent.size() == 2);
    CHECK(client.sent[0].topic == "up");
    CHECK(client.sent[0].payload == "text");
    CHECK(client.sent[0].qos == 1);
    CHECK(client.sent[0].retain);
    CHECK(client.sent[1].was_null);
    CHECK(name_of(link.transport.publish("up", Bytes(std::string(20000, 'x')), 0, false)) == "no_space");
    mqtt::publish_result = -1;
    REQUIRE(link.transport.publish("up", Bytes("x"), 0, false).ok());
    link.run(100);
    CHECK(fake::log::text.find("was not sent") != std::string::npos);
    mqtt::publish_result = 0;
    for (int i = 0; i < 100; ++i) {  // room is free again once a message has left
        REQUIRE(link.transport.publish("up", Bytes(std::string(1000, 'x')), 0, false).ok());
        link.run(10);
    }
    mqtt::down(client);
    link.run(1);
    CHECK(name_of(link.transport.publish("up", Bytes("x"), 0, false)) == "unavailable");
}

TEST_CASE("the fake is as slow as esp-mqtt: what is queued leaves one by one, a second apart") {
    Link link;
    mqtt::Client &client = link.connect();
    link.run(300);
    const std::int64_t begin = fake::rtos::now_us;
    for (int i = 0; i < 7; ++i)
        esp_mqtt_client_enqueue(client.handle, "up", "x", 1, 0, 0, true);
    link.run(10'000);
    REQUIRE(client.sent.size() == 7);
    CHECK(client.sent[0].at_us - begin >= 600'000);
    CHECK(client.sent[6].at_us - begin >= 6'600'000);
}

TEST_CASE("answers leave at once, not when esp-mqtt next looks") {
    Link link;
    mqtt::Client &client = link.connect();
    link.transport.on_message = [&](Bytes m) { REQUIRE(link.transport.publish("up", m, 0, false).ok()); };
    link.run(300);
    const std::int64_t asked = fake::rtos::now_us;
    for (int i = 0; i < 7; ++i)
        mqtt::message(client, "request " + std::to_string(i));
    link.run(2000);
    REQUIRE(client.sent.size() == 7);
    CHECK(client.sent[0].at_us - asked <= 20'000);
    CHECK(client.sent[6].at_us - asked <= 100'000);
    for (int i = 0; i < 7; ++i)
        CHECK(client.sent[static_cast<std::size_t>(i)].payload == "request " + std::to_string(i));
}

TEST_CASE("TCP that stalls holds up neither the executor nor what is read") {
    Link link;
    mqtt::Client &client = link.connect();
    client.stalled = true;
    bool full = false;
    for (int i = 0; i < 40 && !full; ++i)
        full = name_of(link.transport.publish("up", Bytes(std::string(1000, 'x')), 0, false)) == "no_space";
    CHECK(full);
    int ticks = 0;
    link.executor.post_after(10, [&] { ++ticks; });
    link.run(30'000);
    CHECK(ticks == 1);
    CHECK(fake::rtos::longest_turn_us <= 100'000);
    CHECK(link.states.back() == TransportState::down);
    const std::int64_t begin = fake::rtos::now_us;
    REQUIRE(link.transport.start(Link::broker(), {}, {}).ok());
    CHECK(fake::rtos::now_us - begin <= 100'000);
}

TEST_CASE("after a lost link the next one begins without a wait") {
    Link link;
    mqtt::Client &old = link.connect();
    mqtt::down(old);
    link.run(1);
    const std::int64_t begin = fake::rtos::now_us;
    REQUIRE(link.transport.start(Link::broker(), {}, {}).ok());
    CHECK(fake::rtos::now_us - begin <= 100'000);
    link.run(100);
    REQUIRE(mqtt::clients.size() == 2);
    CHECK(old.destroyed);
    CHECK(mqtt::last().started);
}

TEST_CASE("a goodbye comes after what was published before it") {
    Link link;
    mqtt::Client &client = link.connect();
    REQUIRE(link.transport.publish("up", Bytes("answer"), 0, false).ok());
    link.transport.stop(true);
    link.run(1000);
    REQUIRE(client.sent.size() == 1);
    CHECK(client.disconnected);
    CHECK(client.closed_us >= client.sent[0].at_us);
}

TEST_CASE("a client that does not start leaves nothing behind") {
    Link link;
    mqtt::start_result = ESP_ERR_NO_MEM;
    REQUIRE(link.transport.start(Link::broker(), {}, {}).ok());
    link.run(1);
    CHECK(link.states == std::vector<TransportState>{TransportState::down});
    CHECK(name_of(link.last_why) == "no_memory");
    CHECK(mqtt::last().destroyed);
}

TEST_CASE("a client that has just been made is not freed under its own task") {
    Link link;
    REQUIRE(link.transport.start(Link::broker(), {}, {}).ok());
    REQUIRE(link.transport.start(Link::broker(), {}, {}).ok());
    link.run(20'000);  // the first one connects, for as long as it may
    REQUIRE(mqtt::clients.size() == 2);
    CHECK(mqtt::clients[0]->destroyed);
    CHECK(mqtt::last().started);
    CHECK(fake::rtos::longest_turn_us <= 100'000);
}
