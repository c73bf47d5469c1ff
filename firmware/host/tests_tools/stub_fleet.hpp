// SPDX-License-Identifier: Apache-2.0
// A server as small as a device can live with: boot poll, image, broker. It
// offers an image to every device that runs an older version, and sends each
// connected device a ping now and then.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace fleet::test {

class StubFleet {
public:
    // The image is of version 1.1.0. With a key, devices have to prove that they
    // have it before they are given the broker.
    explicit StubFleet(std::string image, std::string key = "");
    ~StubFleet();
    std::string poll_url() const;

    std::atomic<int> offers_left{1000};
    std::atomic<int> polls{0}, downloads{0}, resumed{0}, connections{0};
    std::atomic<std::uint16_t> stated_port{0};  // of the broker, instead of its

    std::uint16_t http_port() const { return http_port_; }
    std::uint16_t mqtt_port() const { return mqtt_port_; }
    std::string said();  // all that devices published

private:
    void accept(int listener, void (StubFleet::*serve)(int));
    void http(int fd);
    void mqtt(int fd);
    std::string answer(const std::string &head, const std::string &body);
    std::string activate(const std::string &body);
    std::string poll_answer(const std::string &head);
    std::string image_answer(const std::string &head);

    std::string image_, key_;
    std::uint16_t http_port_ = 0, mqtt_port_ = 0;  // before the listeners, which fill them
    int http_listener_, mqtt_listener_;
    std::atomic<bool> over_{false}, proven_{false};
    std::mutex mutex_;
    std::set<int> open_;
    std::string said_;
    std::list<std::thread> threads_;
    std::thread http_thread_, mqtt_thread_;
};

}  // namespace fleet::test
