// SPDX-License-Identifier: Apache-2.0
#include "script_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace fleet::test {

std::string Peer::read_until(const std::string &end) {
    std::size_t at;
    while ((at = ahead_.find(end)) == std::string::npos) {
        char buffer[4096];
        const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
        if (n <= 0) return std::exchange(ahead_, "");
        ahead_.append(buffer, static_cast<std::size_t>(n));
    }
    const std::string got = ahead_.substr(0, at + end.size());
    ahead_.erase(0, at + end.size());
    return got;
}

std::string Peer::read_bytes(std::size_t n) {
    while (ahead_.size() < n) {
        char buffer[4096];
        const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
        if (got <= 0) break;
        ahead_.append(buffer, static_cast<std::size_t>(got));
    }
    const std::string out = ahead_.substr(0, n);
    ahead_.erase(0, n);
    return out;
}

std::string Peer::read_mqtt() {
    std::string packet = read_bytes(1);
    std::size_t length = 0;
    for (int shift = 0; !packet.empty(); shift += 7) {
        const std::string digit = read_bytes(1);
        if (digit.empty()) return "";
        packet += digit;
        length |= static_cast<std::size_t>(digit[0] & 0x7f) << shift;
        if ((digit[0] & 0x80) == 0) break;
    }
    return packet + read_bytes(length);
}

void Peer::send(const std::string &bytes) {
    if (::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
}

bool Peer::closed() {
    char byte;
    return ::recv(fd_, &byte, 1, 0) == 0;
}

ScriptServer::ScriptServer(std::vector<Script> scripts) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr *>(&address), size);
    ::listen(listener_, 8);
    ::getsockname(listener_, reinterpret_cast<sockaddr *>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, scripts = std::move(scripts)] {
        for (const Script &script : scripts) {
            const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (fd < 0) return;
            const timeval read_timeout{2, 0};
            ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &read_timeout, sizeof read_timeout);
            Peer peer(fd);
            script(peer);
            ::close(fd);
        }
    });
}

void ScriptServer::wait() {
    if (thread_.joinable()) thread_.join();
}

ScriptServer::~ScriptServer() {
    ::shutdown(listener_, SHUT_RDWR);
    wait();
    ::close(listener_);
}

std::string ScriptServer::url(const std::string &path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
}

}  // namespace fleet::test
