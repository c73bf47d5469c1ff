// SPDX-License-Identifier: Apache-2.0
// A whole fake machine: what it is to be, what it did.
#pragma once

#include "fakes.hpp"
#include "sodium_crypto.hpp"

#include <map>
#include <string>
#include <vector>

namespace fleet::test {

class FakeSystem : public System {
public:
    void restart() override { restarts++; }
    const AppInfo &app() const override { return info; }
    ResetReason reset_reason() const override { return reason; }
    std::uint32_t heap_free() const override { return 150'000; }
    std::uint32_t heap_min() const override { return 120'000; }
    std::uint32_t heap_largest() const override { return 90'000; }
    ChipInfo chip() const override { return {"esp32s3", 9, 2, 2, 16u << 20}; }
    std::string mac() const override { return "a0:85:e3:11:22:33"; }
    void random(MutableBytes into) const override;
    std::string partition_table_json() const override { return partitions; }
    void feed_watchdog() override { fed++; }
    void stacks(FunctionRef<void(std::string_view, std::uint32_t)> each) const override {
        for (const auto &[task, never_used] : tasks)
            each(task, never_used);
    }
    Result<int> temperature() const override { return 415; }

    AppInfo info{"fleet_unit", "1.0.0", "Aug  8 2026T08:33:45Z", "v6.0.2", std::string(64, 'a'), 1};
    ResetReason reason = ResetReason::power_on;
    std::string partitions = "[{\"label\":\"ota_0\",\"type\":0,\"subtype\":16,\"address\":131072,\"size\":4128768}]";
    std::vector<std::pair<std::string, std::uint32_t>> tasks;
    int restarts = 0;
    int fed = 0;
    mutable std::uint32_t seed = 1;
    std::int64_t fixed_random = -1;  // every byte, if not -1
};

// FakeHttp serves files by URL, with Range and ETag, and fails as scripted.
class FakeHttp : public HttpClient {
public:
    Result<HttpResponse> get(std::string_view url, std::int64_t range_from,
                             FunctionRef<Status(const HttpResponse &)> begin, FunctionRef<Status(Bytes)> sink) override;
    Result<HttpResponse> post(std::string_view url, const HttpHeader *headers, std::size_t header_count, Bytes body,
                              std::string &reply, std::size_t reply_limit) override;
    Result<HttpResponse> post_file(std::string_view, std::string_view, std::string_view,
                                   FunctionRef<Result<std::size_t>(MutableBytes)>) override {
        return Status{Code::unsupported, "not here"};
    }

    struct Answer {
        int status = 200;
        std::string body;
        bool unreachable = false;
    };
    std::map<std::string, std::string> files;
    std::string etag = "\"one\"";
    bool ranges = true;
    bool says_length = true;
    std::size_t piece = 1000;
    std::vector<std::int64_t> cut_at;  // the nth get ends after so many bytes; -1: whole
    std::vector<int> get_status;       // the nth get's status, if not 0
    std::function<void()> on_piece;
    std::vector<std::int64_t> asked_from;

    std::map<std::string, std::vector<Answer>> answers;  // to posts, the last one stays
    std::vector<std::string> posted;                     // "url\nbody"
    std::map<std::string, std::string> headers;          // of the last post
};

// FakeUpdater keeps two slots and plays the bootloader.
class FakeUpdater : public Updater {
public:
    struct Slot {
        std::string bytes;
        SlotInfo info;
    };

    explicit FakeUpdater(FakeSystem &system);
    SlotInfo running() const override { return slots[current].info; }
    Result<SlotInfo> other() const override;
    Status begin(std::uint32_t image_size, std::uint32_t resume_from) override;
    Status write(Bytes chunk) override;
    Status finish() override;
    void abort() override { aborts++; }
    Status read_back(std::uint32_t offset, MutableBytes into) override;
    Status boot_other() override;
    Status mark_valid() override;
    Status mark_invalid() override;

    // boot does what the bootloader does at a restart.
    void boot();

    Slot slots[2];
    int current = 0;
    int next = 0;
    int aborts = 0;
    bool single = false;
    bool broken = false;  // writing fails
    bool cannot_switch = false;
    std::function<bool()> powerless;  // asked at each step: true once the power is cut

private:
    FakeSystem &system_;
    SodiumCrypto crypto_;
};

class FakeTransport : public Transport {
public:
    Status start(const BrokerSettings &settings, std::string_view topic, std::string_view text) override {
        starts++;
        last = settings;
        will_topic = std::string(topic);
        will = std::string(text);
        return startable ? Status{} : Status{Code::unavailable, "no network"};
    }
    void stop(bool) override {
        stops++;
        if (stopping && on_stopped) on_stopped();
    }
    Status publish(std::string_view topic, Bytes payload, int qos, bool retain) override {
        if (!up) return {Code::unavailable, "not connected"};
        plain = plain && qos == 0 && !retain;
        last_topic = std::string(topic);
        sent.emplace_back(payload.text());
        return {};
    }
    void connect() {
        up = true;
        on_state(TransportState::up, {});
    }
    void drop(TransportState state = TransportState::down) {
        up = false;
        on_state(state, {Code::unavailable, "gone"});
    }
    void say(std::string_view text) { on_message(Bytes(text)); }

    BrokerSettings last;
    std::string last_topic, will_topic, will;
    std::vector<std::string> sent;
    int starts = 0;
    int stops = 0;
    bool up = false;
    bool startable = true;
    bool plain = true;     // all messages: QoS 0, not retained
    bool stopping = true;  // false: a goodbye that never leaves
};

class FakeNetwork : public Network {
public:
    bool connected() const override { return true; }
    int rssi() const override { return -52; }
    int channel() const override { return 6; }
    std::string ip() const override { return "192.0.2.27"; }
    std::string ssid() const override { return name; }
    std::string name = "lab";
};

class FakeDisplay : public Display {
public:
    int width() const override { return 320; }
    int height() const override { return 240; }
    bool monochrome() const override { return false; }
    Status snapshot(PictureFormat, int, FunctionRef<Status(Bytes)>) override { return {}; }
    Status show_picture(Bytes) override { return {}; }
    void show_text(std::string_view title, std::string_view text) override {
        shown = std::string(title) + "|" + std::string(text);
    }
    Status set_brightness(int) override { return {}; }
    Result<int> brightness() const override { return 50; }
    Status set_theme(std::string_view) override { return {}; }
    std::string theme() const override { return "light"; }
    std::string shown;
};

class FakeIdentity : public Identity {
public:
    std::string serial() const override { return number; }
    Result<std::string> hmac(std::string_view) const override {
        if (code.empty()) return failure;
        return code;
    }
    std::string number = "SN-0123456789ABCDEF0123456789AB-";
    std::string code = std::string(64, 'e');
    Status failure{Code::unsupported, "no key"};
};

struct FakeMachine {
    FakeMachine();

    FakeClock clock;
    FakeExecutor executor{clock};
    FakeStore store;
    FakeSystem system;
    FakeHttp http;
    FakeUpdater updater{system};
    FakeTransport transport;
    FakeNetwork network;
    FakeDisplay display;
    FakeIdentity identity;
    SodiumCrypto crypto;
    Machine machine;
};

// make_image builds an app image; size is that of its one segment's data.
std::string make_image(std::string_view version, std::size_t size = 300'000, std::uint16_t chip = 9,
                       std::string_view project = "fleet_unit", std::uint8_t secure_version = 1);

}  // namespace fleet::test
