// SPDX-License-Identifier: Apache-2.0
#include "ports/mosquitto_transport.hpp"
#include "ports/thread_executor.hpp"
#include "script_server.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

const std::string accepted("\x20\x02\x00\x00", 4);

// Rig runs a transport against a scripted broker until the test stops it.
struct Rig {
    host::ThreadExecutor executor;
    host::MosquittoTransport transport{executor, {8883, "/etc/ssl/certs/ca-certificates.crt"}};
    std::string states;
    std::string messages;

    Rig() {
        transport.on_state = [this](TransportState s, Status) {
            states += s == TransportState::up ? 'u' : s == TransportState::refused ? 'r' : 'd';
            if (s != TransportState::up) executor.stop();
        };
        executor.post_after(5000, [this] { executor.stop(); });
    }
    void start(std::uint16_t port) {
        BrokerSettings settings;
        settings.host = "127.0.0.1";
        settings.port = port;
        settings.client_id = "unit-1";
        settings.username = "user";
        settings.password = "secret";
        executor.post([this, settings] { REQUIRE(transport.start(settings, "up", "{\"gone\":true}").ok()); });
    }
};

}  // namespace

TEST_SUITE("transport") {
    TEST_CASE("it connects as a stock device does, and hears without subscribing") {
        std::string connect, published, goodbye;
        ScriptServer broker({[&](Peer &peer) {
            connect = peer.read_mqtt();
            peer.send(accepted);
            peer.send(std::string("\x30\x07\x00\x01t", 5) + "hush");
            published = peer.read_mqtt();
            goodbye = peer.read_mqtt();
        }});
        Rig rig;
        rig.transport.on_message = [&](Bytes b) {
            rig.messages += b.text();
            CHECK(rig.transport.publish("fleet/up", Bytes{"pong"}, 0, false).ok());
            rig.transport.stop(true);
            rig.executor.stop();
        };
        rig.start(broker.port());
        rig.executor.run();
        broker.wait();
        CHECK(rig.states == "u");
        CHECK(rig.messages == "hush");
        CHECK(connect.substr(2, 7) == std::string("\x00\x04MQTT\x04", 7));
        CHECK((connect[9] & 0x02) != 0);  // clean session
        CHECK((connect[9] & 0x04) != 0);  // last will
        CHECK(connect.find("unit-1") != std::string::npos);
        CHECK(published.find("fleet/uppong") != std::string::npos);
        CHECK(goodbye == std::string("\xe0\x00", 2));
    }

    TEST_CASE("a refusal says so, once") {
        ScriptServer broker({[](Peer &peer) {
            peer.read_mqtt();
            peer.send(std::string("\x20\x02\x00\x05", 4));
        }});
        Rig rig;
        rig.start(broker.port());
        rig.executor.run();
        CHECK(rig.states == "r");
    }

    TEST_CASE("nothing at the address, and a broker that goes away, are down") {
        Rig rig;
        std::uint16_t port = 1;
        ScriptServer broker({[](Peer &peer) {
            peer.read_mqtt();
            peer.send(accepted);
        }});
        std::string want = "d";
        SUBCASE("nothing there") {}
        SUBCASE("goes away") {
            port = broker.port();
            want = "ud";
        }
        rig.start(port);
        rig.executor.run();
        CHECK(rig.states == want);
        CHECK(rig.transport.publish("t", Bytes{"x"}, 0, false).code == Code::unavailable);
    }

    TEST_CASE("without a network, or told otherwise, it does not go where it is sent") {
        int there = 0;
        ScriptServer sent({[&](Peer &peer) { there += !peer.read_mqtt().empty(); }});
        ScriptServer forced({[](Peer &peer) {
            peer.read_mqtt();
            peer.send(accepted);
        }});
        Rig rig;
        rig.transport.connect_to("127.0.0.1", forced.port());
        rig.start(sent.port());
        rig.executor.run();
        CHECK(rig.states == "ud");
        rig.transport.unplug();
        CHECK(rig.transport.start({}, {}, {}).code == Code::unavailable);
        CHECK(there == 0);
    }

    TEST_CASE("a cut connection is one that broke: no goodbye") {
        bool silent = false;
        ScriptServer broker({[&](Peer &peer) {
            peer.read_mqtt();
            peer.send(accepted);
            silent = peer.closed();
        }});
        Rig rig;
        rig.executor.post_after(300, [&] { rig.transport.cut(); });
        rig.start(broker.port());
        rig.executor.run();
        CHECK(rig.states == "ud");
        rig.transport.stop(false);
        broker.wait();
        CHECK(silent);
    }

    TEST_CASE("a restart of the transport drops what the old link still says") {
        std::vector<ScriptServer::Script> scripts;
        for (int i = 0; i < 3; ++i) {
            scripts.push_back([](Peer &peer) {
                peer.read_mqtt();
                peer.send(accepted);
                peer.closed();
            });
        }
        ScriptServer broker(scripts);
        Rig rig;
        for (int i = 0; i < 3; ++i)
            rig.start(broker.port());
        rig.executor.post_after(500, [&] { rig.executor.stop(); });
        rig.executor.run();
        CHECK(rig.states.find('d') == std::string::npos);
    }
}
