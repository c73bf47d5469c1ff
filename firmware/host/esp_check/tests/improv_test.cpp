// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/improv_service.hpp"
#include "fleet_esp/serial_line.hpp"

namespace improv = fleet::esp::improv;
using improv::Command;
using improv::Type;

namespace {

std::vector<improv::Packet> packets_in(std::string_view bytes) {
    improv::Parser parser;
    std::vector<improv::Packet> packets;
    for (const char c : bytes) {
        if (parser.feed(static_cast<std::uint8_t>(c))) packets.push_back(parser.packet());
    }
    return packets;
}

std::string command(Command c, const std::string &data = "") {
    return improv::encode(Type::command,
                          std::string(1, static_cast<char>(c)) + std::string(1, static_cast<char>(data.size())) + data);
}

const std::string credentials = std::string("\4home\10password", 14);

struct FixedNetwork : fleet::Network {
    bool up = false;
    bool connected() const override { return up; }
    int rssi() const override { return 0; }
    int channel() const override { return 0; }
    std::string ip() const override { return {}; }
    std::string ssid() const override { return {}; }
};

struct Browser : Bench {
    Browser() : service(executor, network, hooks()) {}
    fleet::esp::ImprovHooks hooks() {
        fleet::esp::ImprovHooks h;
        h.send = [this](std::string_view bytes) { sent += bytes; };
        h.join = [this](std::string_view ssid, std::string_view password) {
            joined.push_back(std::string(ssid) + "/" + std::string(password));
            return join_result;
        };
        h.give_up = [this] { ++given_up; };
        h.scan = [this] { return found; };
        h.product = "fleet_unit";
        h.version = "1.0.0";
        h.chip = "esp32s3";
        h.name = "esp32s3-lcd";
        h.next_url = "https://fleet.example.org/enrol";
        return h;
    }
    std::vector<improv::Packet> say(const std::string &bytes) {
        sent.clear();
        service.receive(fleet::Bytes(bytes));
        return packets_in(sent);
    }

    FixedNetwork network;
    std::string sent;
    std::vector<std::string> joined;
    std::vector<fleet::esp::FoundNetwork> found;
    fleet::Status join_result;
    int given_up = 0;
    fleet::esp::ImprovService service;
};

bool is(const improv::Packet &packet, Type type, int first) {
    return packet.type == type && !packet.data.empty() && static_cast<std::uint8_t>(packet.data[0]) == first;
}

}  // namespace

TEST_SUITE_BEGIN("improv");

TEST_CASE("a packet is found in other text") {
    const std::string packet = improv::encode(Type::command, std::string("\2\0", 2));
    CHECK(packet == std::string("IMPROV\1\3\2\2\0\xe5\n", 13));
    const auto found = packets_in("I (12) wifi: IMPRO IIMPRO " + packet + "IMPROVE" + packet);
    REQUIRE(found.size() == 2);
    CHECK(found[1].type == Type::command);
    CHECK(found[1].data == std::string("\2\0", 2));
}

TEST_CASE("damage drops one packet only") {
    std::string bad = command(Command::get_state);
    bad[bad.size() - 2] ^= 1;
    CHECK(packets_in(bad).empty());
    CHECK(packets_in(bad + command(Command::get_state)).size() == 1);
    for (int byte = 0; byte < 256; ++byte) {
        const std::string noise(700, static_cast<char>(byte));
        CHECK(packets_in(noise + command(Command::get_state)).size() == 1);
    }
}

TEST_CASE("a result leaves out what does not fit") {
    const std::string texts[] = {std::string(200, 'a'), std::string(60, 'b')};
    const auto packets = packets_in(improv::encode_result(Command::get_device, texts, 2));
    REQUIRE(packets.size() == 1);
    CHECK(packets[0].data.size() == 2 + 201);
}

TEST_CASE("credentials have their form") {
    const auto good = improv::parse_credentials(credentials);
    REQUIRE(good.ok());
    CHECK(good.value().ssid == "home");
    CHECK(good.value().password == "password");
    CHECK(improv::parse_credentials(std::string("\4home\0", 6)).ok());
    for (const std::string &bad : {std::string(""), std::string("\4hom"), std::string("\4home"), credentials + "x",
                                   std::string("\0\10password", 10), std::string("\xffhome", 5)}) {
        CHECK_FALSE(improv::parse_credentials(bad).ok());
    }
}

TEST_CASE("state and device") {
    Browser b;
    auto answer = b.say(command(Command::get_state));
    REQUIRE(answer.size() == 1);
    CHECK(is(answer[0], Type::state, 2));
    answer = b.say(command(Command::get_device));
    REQUIRE(answer.size() == 1);
    CHECK(answer[0].data.substr(2) == "\12fleet_unit\0051.0.0\7esp32s3\13esp32s3-lcd");
    b.network.up = true;
    answer = b.say(command(Command::get_state));
    REQUIRE(answer.size() == 2);
    CHECK(is(answer[0], Type::state, 4));
    CHECK(answer[1].data.substr(3) == "https://fleet.example.org/enrol");
}

TEST_CASE("credentials that work") {
    Browser b;
    auto answer = b.say(command(Command::send_wifi, credentials));
    REQUIRE(answer.size() == 2);
    CHECK(is(answer[0], Type::error, 0));
    CHECK(is(answer[1], Type::state, 3));
    CHECK(b.joined == std::vector<std::string>{"home/password"});
    CHECK(is(b.say(command(Command::send_wifi, credentials))[0], Type::error, 0xff));  // one at a time
    b.sent.clear();
    b.run(3000);
    CHECK(b.sent.empty());
    b.network.up = true;
    b.run(1000);
    answer = packets_in(b.sent);
    REQUIRE(answer.size() == 2);
    CHECK(is(answer[0], Type::state, 4));
    CHECK(answer[1].data[0] == 1);
    CHECK(b.given_up == 0);
}

TEST_CASE("credentials that do not work are given up, and others may follow") {
    Browser b;
    b.say(command(Command::send_wifi, credentials));
    b.sent.clear();
    b.run(31000);
    const auto answer = packets_in(b.sent);
    REQUIRE(answer.size() == 2);
    CHECK(is(answer[0], Type::error, 3));
    CHECK(is(answer[1], Type::state, 2));
    CHECK(b.given_up == 1);
    CHECK(b.say(command(Command::send_wifi, credentials)).size() == 2);
    b.join_result = {fleet::Code::invalid, "no"};
    b.run(31000);
    CHECK(is(b.say(command(Command::send_wifi, credentials))[0], Type::error, 3));
}

TEST_CASE("networks are listed once each, the strongest first") {
    Browser b;
    b.found = {{"weak", -80, true}, {"cafe", -40, false}, {"", -10, true}, {"weak", -85, true}};
    b.say(command(Command::get_networks));
    b.say(command(Command::get_networks));  // while the first scan runs
    b.run(10);
    const auto answer = packets_in(b.sent);
    REQUIRE(answer.size() == 3);
    CHECK(answer[0].data.substr(2) == "\4cafe\3-40\2NO");
    CHECK(answer[1].data.substr(2) == "\4weak\3-80\3YES");
    CHECK(answer[2].data == std::string("\4\0", 2));
}

TEST_CASE("what is not understood is an error") {
    Browser b;
    CHECK(is(b.say(command(static_cast<Command>(9)))[0], Type::error, 2));
    CHECK(is(b.say(improv::encode(Type::command, "\1"))[0], Type::error, 1));
    CHECK(is(b.say(improv::encode(Type::command, "\1\5abc"))[0], Type::error, 1));
    CHECK(is(b.say(command(Command::send_wifi, "\4hom"))[0], Type::error, 1));
    CHECK(b.say(improv::encode(Type::state, "\2")).empty());
}

TEST_CASE("the serial line hands over what comes, and sends what it is given") {
    Bench b;
    fleet::esp::SerialLine line(b.executor);
    REQUIRE(line.start().ok());
    std::string heard;
    line.on_bytes = [&](fleet::Bytes bytes) { heard += bytes.text(); };
    fake::serial::incoming = "abc" + std::string(100, 'x');
    line.turn();
    line.turn();
    line.turn();
    b.run(1);
    CHECK(heard.size() == 103);
    line.send("out");
    CHECK(fake::serial::outgoing == "out");
    fake::serial::result = ESP_FAIL;
    CHECK_FALSE(line.start().ok());
}
