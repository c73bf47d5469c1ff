// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/improv_service.hpp"

#include "esp_log.h"

#include <algorithm>
#include <utility>

namespace fleet::esp {

using improv::Command;
using improv::Error;
using improv::State;

namespace {

constexpr const char *TAG = "improv";
constexpr std::uint32_t poll_ms = 500;

}  // namespace

void ImprovService::receive(Bytes bytes) {
    for (std::size_t i = 0; i < bytes.size; ++i) {
        if (parser_.feed(bytes.data[i])) handle(parser_.packet());
    }
}

void ImprovService::handle(const improv::Packet &packet) {
    if (packet.type != improv::Type::command) return;  // an echo of our own
    const std::string_view data = packet.data;
    if (data.size() < 2 || static_cast<std::uint8_t>(data[1]) != data.size() - 2) return fail(Error::bad_packet);
    run(static_cast<Command>(data[0]), data.substr(2));
}

void ImprovService::run(Command command, std::string_view data) {
    switch (command) {
        case Command::send_wifi: return send_wifi(data);
        case Command::get_state: return send_state();
        case Command::get_device: return send_device();
        case Command::get_networks: return send_networks();
    }
    fail(Error::unknown_command);
}

void ImprovService::fail(Error error) {
    hooks_.send(improv::encode_error(error));
}

void ImprovService::send_wifi(std::string_view data) {
    const Result<improv::Credentials> credentials = improv::parse_credentials(data);
    if (!credentials.ok()) return fail(Error::bad_packet);
    if (joining_) return fail(Error::unknown);
    const Status status = hooks_.join(credentials.value().ssid, credentials.value().password);
    if (!status.ok()) {
        ESP_LOGW(TAG, "%s", status.why);
        return fail(Error::no_connection);
    }
    joining_ = true;
    fail(Error::none);
    hooks_.send(improv::encode_state(State::provisioning));
    executor_.post_after(poll_ms, [this, attempt = ++attempt_] { wait_for_network(attempt, poll_ms); });
}

void ImprovService::wait_for_network(unsigned attempt, std::uint32_t waited_ms) {
    if (attempt != attempt_) return;
    if (network_.connected()) {
        joining_ = false;
        hooks_.send(improv::encode_state(State::provisioned));
        hooks_.send(improv::encode_result(Command::send_wifi, &hooks_.next_url, hooks_.next_url.empty() ? 0 : 1));
        return;
    }
    if (waited_ms >= join_timeout_ms) {
        joining_ = false;
        hooks_.give_up();
        fail(Error::no_connection);
        return send_state();
    }
    executor_.post_after(poll_ms, [this, attempt, waited_ms] { wait_for_network(attempt, waited_ms + poll_ms); });
}

void ImprovService::send_state() {
    if (joining_) return hooks_.send(improv::encode_state(State::provisioning));
    if (!network_.connected()) return hooks_.send(improv::encode_state(State::ready));
    hooks_.send(improv::encode_state(State::provisioned));
    hooks_.send(improv::encode_result(Command::get_state, &hooks_.next_url, hooks_.next_url.empty() ? 0 : 1));
}

void ImprovService::send_device() {
    const std::string texts[] = {hooks_.product, hooks_.version, hooks_.chip, hooks_.name};
    hooks_.send(improv::encode_result(Command::get_device, texts, 4));
}

void ImprovService::send_networks() {
    if (std::exchange(scanning_, true)) return;
    executor_.work([this] {
        std::vector<FoundNetwork> networks = hooks_.scan();
        executor_.post([this, found = std::move(networks)] { send_networks_found(found); });
    });
}

// One result for each network, strongest first, then an empty one.
void ImprovService::send_networks_found(const std::vector<FoundNetwork> &networks) {
    scanning_ = false;
    std::vector<FoundNetwork> sorted = networks;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const FoundNetwork &a, const FoundNetwork &b) { return a.rssi > b.rssi; });
    std::vector<std::string> sent;
    for (const FoundNetwork &network : sorted) {
        if (network.ssid.empty() || std::find(sent.begin(), sent.end(), network.ssid) != sent.end()) continue;
        sent.push_back(network.ssid);
        const std::string texts[] = {network.ssid, std::to_string(network.rssi), network.locked ? "YES" : "NO"};
        hooks_.send(improv::encode_result(Command::get_networks, texts, 3));
    }
    hooks_.send(improv::encode_result(Command::get_networks, nullptr, 0));
}

}  // namespace fleet::esp
