// SPDX-License-Identifier: Apache-2.0
// A server on loopback that does what the test says with each connection: real
// sockets, scripted bytes.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace fleet::test {

class Peer {
public:
    explicit Peer(int fd) : fd_(fd) {}
    std::string read_until(const std::string &end);  // or to the end of the connection
    std::string read_bytes(std::size_t n);
    std::string read_mqtt();  // one packet
    void send(const std::string &bytes);
    bool closed();  // waits up to 2 s for the other side to go

private:
    int fd_;
    std::string ahead_;
};

class ScriptServer {
public:
    using Script = std::function<void(Peer &)>;
    explicit ScriptServer(std::vector<Script> scripts);  // one connection each
    ~ScriptServer();
    void wait();  // until all scripts have run: what they wrote can be read
    std::uint16_t port() const { return port_; }
    std::string url(const std::string &path) const;

private:
    int listener_;
    std::uint16_t port_ = 0;
    std::thread thread_;
};

}  // namespace fleet::test
