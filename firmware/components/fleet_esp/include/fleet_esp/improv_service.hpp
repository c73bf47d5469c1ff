// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ports.hpp"
#include "fleet_esp/improv.hpp"

#include <functional>
#include <string>
#include <vector>

namespace fleet::esp {

struct FoundNetwork {
    std::string ssid;
    int rssi = 0;
    bool locked = true;
};

// What the service needs of the device, so that it can be tested without one.
struct ImprovHooks {
    std::function<void(std::string_view)> send;
    std::function<Status(std::string_view ssid, std::string_view password)> join;
    std::function<void()> give_up;                    // join did not lead to a connection
    std::function<std::vector<FoundNetwork>()> scan;  // on the worker
    std::string product, version, chip, name;
    std::string next_url;  // where the browser goes when the device is connected
};

// ImprovService answers Improv's commands. All but scan runs on the executor.
class ImprovService {
public:
    static constexpr std::uint32_t join_timeout_ms = 30000;

    ImprovService(Executor &executor, const Network &network, ImprovHooks hooks)
        : executor_(executor), network_(network), hooks_(std::move(hooks)) {}

    void receive(Bytes bytes);

private:
    void handle(const improv::Packet &packet);
    void run(improv::Command command, std::string_view data);
    void send_wifi(std::string_view data);
    void wait_for_network(unsigned attempt, std::uint32_t waited_ms);
    void send_state();
    void send_device();
    void send_networks();
    void send_networks_found(const std::vector<FoundNetwork> &networks);
    void fail(improv::Error error);

    Executor &executor_;
    const Network &network_;
    ImprovHooks hooks_;
    improv::Parser parser_;
    unsigned attempt_ = 0;
    bool joining_ = false;
    bool scanning_ = false;
};

}  // namespace fleet::esp
