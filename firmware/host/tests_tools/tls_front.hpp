// SPDX-License-Identifier: Apache-2.0
// TLS in front of a plain server on loopback, with a certificate that it makes
// and signs itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>

struct ssl_ctx_st;

namespace fleet::test {

class TlsFront {
public:
    // The certificate is for `name`, a host name or an IPv4 address.
    TlsFront(std::uint16_t plain_port, const std::string &name);
    ~TlsFront();
    std::uint16_t port() const { return port_; }
    const std::string &certificate() const { return pem_; }  // PEM, which trusts it

private:
    void accept();
    void serve(int fd);

    std::uint16_t plain_port_, port_ = 0;
    std::string pem_;
    ssl_ctx_st *context_;
    int listener_;
    std::atomic<bool> over_{false};
    std::list<std::thread> threads_;
    std::thread accepting_;
};

}  // namespace fleet::test
