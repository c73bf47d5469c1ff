// SPDX-License-Identifier: Apache-2.0
#include "stub_fleet.hpp"

#include "ports/openssl_crypto.hpp"
#include "script_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <chrono>

namespace fleet::test {

namespace {

int listen_on_loopback(std::uint16_t &port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(fd, reinterpret_cast<sockaddr *>(&address), size);
    ::listen(fd, 64);
    ::getsockname(fd, reinterpret_cast<sockaddr *>(&address), &size);
    port = ntohs(address.sin_port);
    return fd;
}

std::string header(const std::string &head, const std::string &name) {
    const std::size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const std::size_t from = at + name.size() + 4;
    return head.substr(from, head.find("\r\n", from) - from);
}

std::string with_length(const std::string &status, const std::string &extra, const std::string &body) {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + extra + "\r\n" + body;
}

const std::string challenge = "c0ffee";
const std::string ping = R"({"type":"mcp","payload":{"jsonrpc":"2.0","id":1,"method":"ping"}})";

}  // namespace

StubFleet::StubFleet(std::string image, std::string key)
    : image_(std::move(image)),
      key_(std::move(key)),
      http_listener_(listen_on_loopback(http_port_)),
      mqtt_listener_(listen_on_loopback(mqtt_port_)),
      http_thread_([this] { accept(http_listener_, &StubFleet::http); }),
      mqtt_thread_([this] { accept(mqtt_listener_, &StubFleet::mqtt); }) {}

StubFleet::~StubFleet() {
    over_ = true;
    ::shutdown(http_listener_, SHUT_RDWR);
    ::shutdown(mqtt_listener_, SHUT_RDWR);
    http_thread_.join();
    mqtt_thread_.join();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const int fd : open_)
            ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread &t : threads_)
        t.join();
    ::close(http_listener_);
    ::close(mqtt_listener_);
}

std::string StubFleet::poll_url() const {
    return "http://127.0.0.1:" + std::to_string(http_port_) + "/ota/";
}

void StubFleet::accept(int listener, void (StubFleet::*serve)(int)) {
    for (;;) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        open_.insert(fd);
        threads_.emplace_back([this, fd, serve] {
            (this->*serve)(fd);
            const std::lock_guard<std::mutex> inner(mutex_);
            open_.erase(fd);
            ::close(fd);
        });
    }
}

void StubFleet::http(int fd) {
    Peer peer(fd);
    const std::string head = peer.read_until("\r\n\r\n");
    if (head.empty()) return;
    const std::string length = header(head, "Content-Length");
    const std::string body = length.empty() ? "" : peer.read_bytes(std::stoul(length));
    peer.send(answer(head, body));
}

std::string StubFleet::said() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return said_;
}

std::string StubFleet::activate(const std::string &body) {
    const std::string proof = host::hmac_sha256_hex(Bytes{key_}, challenge);
    const bool good = body.find(R"("challenge":")" + challenge + "\"") != std::string::npos &&
                      body.find(R"("hmac":")" + proof + "\"") != std::string::npos;
    if (good) proven_ = true;
    return with_length(good ? "200 OK" : "401 Unauthorized", "", "");
}

std::string StubFleet::answer(const std::string &head, const std::string &body) {
    if (head.find("/activate HTTP/") != std::string::npos) return activate(body);
    if (head.substr(0, 5) == "POST ") {
        ++polls;
        return with_length("200 OK", "Content-Type: application/json\r\n", poll_answer(head));
    }
    return image_answer(head);
}

std::string StubFleet::poll_answer(const std::string &head) {
    if (!key_.empty() && !proven_) {
        return R"({"activation":{"code":"123456","message":"claim me","challenge":")" + challenge + "\"}}";
    }
    std::string body =
        R"({"server_time":{"timestamp":1786147200000,"timezone_offset":480},"mqtt":{"endpoint":"127.0.0.1:)" +
        std::to_string(stated_port != 0 ? stated_port.load() : mqtt_port_) +
        R"(","client_id":"u","publish_topic":"up","keepalive":60})";
    if (header(head, "User-Agent").find("/1.0.0") != std::string::npos && offers_left-- > 0) {
        body +=
            R"(,"firmware":{"version":"1.1.0","url":"http://127.0.0.1:)" + std::to_string(http_port_) + R"(/fw.bin"})";
    }
    return body + "}";
}

std::string StubFleet::image_answer(const std::string &head) {
    ++downloads;
    const std::string etag = "ETag: \"one\"\r\n", range = header(head, "Range");
    if (range.substr(0, 6) != "bytes=") return with_length("200 OK", etag, image_);
    ++resumed;
    const std::size_t from = std::stoul(range.substr(6));
    if (from >= image_.size()) return with_length("416 Range Not Satisfiable", "", "");
    return with_length("206 Partial Content",
                       etag + "Content-Range: bytes " + std::to_string(from) + "-" + std::to_string(image_.size() - 1) +
                           "/" + std::to_string(image_.size()) + "\r\n",
                       image_.substr(from));
}

void StubFleet::mqtt(int fd) {
    Peer peer(fd);
    if (peer.read_mqtt().empty()) return;
    ++connections;
    peer.send(std::string("\x20\x02\x00\x00", 4));
    std::string message =
        std::string("\x30", 1) + static_cast<char>(ping.size() + 3) + std::string("\x00\x01t", 3) + ping;
    while (!over_) {
        peer.send(message);
        const std::string got = peer.read_mqtt();  // telemetry, reports, the answer to the ping: all the same
        if (got.empty()) return;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            said_ += got;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

}  // namespace fleet::test
