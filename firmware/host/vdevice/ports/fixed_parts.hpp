// SPDX-License-Identifier: Apache-2.0
// Ports that hold a value and no more: network, battery, speaker, LED.
#pragma once

#include "fleet/ports.hpp"

#include <atomic>

namespace fleet::host {

class FixedNetwork final : public Network {
public:
    FixedNetwork(bool connected, std::string ip) : connected_(connected), ip_(std::move(ip)) {}
    bool connected() const override { return connected_; }
    int rssi() const override { return -52; }
    int channel() const override { return 6; }
    std::string ip() const override { return ip_; }
    std::string ssid() const override { return "virtual"; }

private:
    bool connected_;
    std::string ip_;
};

class FixedBattery final : public Battery {
public:
    Result<int> level() const override { return 88; }
    bool charging() const override { return false; }
};

class StoredSpeaker final : public Speaker {
public:
    Status set_volume(int percent) override {
        if (percent < 0 || percent > 100) return {Code::invalid, "volume goes from 0 to 100"};
        volume_ = percent;
        return {};
    }
    int volume() const override { return volume_; }

private:
    std::atomic<int> volume_{70};
};

class StoredLed final : public Led {
public:
    Status set_rgb(std::uint8_t r, std::uint8_t g, std::uint8_t b) override {
        rgb_ = std::uint32_t{r} << 16 | std::uint32_t{g} << 8 | b;
        return {};
    }
    std::uint32_t rgb() const { return rgb_; }

private:
    std::atomic<std::uint32_t> rgb_{0};
};

}  // namespace fleet::host
