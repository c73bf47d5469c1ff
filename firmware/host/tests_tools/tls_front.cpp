// SPDX-License-Identifier: Apache-2.0
#include "tls_front.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <csignal>

namespace fleet::test {

namespace {

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
}

void extend(X509 *certificate, int kind, const std::string &value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
}

// Two authorities of one name could not be distinguished.
std::string unique_name() {
    static std::atomic<int> count{0};
    return "authority " + std::to_string(++count);
}

X509 *self_signed(EVP_PKEY *key, const std::string &name) {
    X509 *x = X509_new();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    const std::string who = unique_name();
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char *>(who.c_str()), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_set_pubkey(x, key);
    const bool is_address = name.find_first_not_of("0123456789.") == std::string::npos;
    extend(x, NID_basic_constraints, "critical,CA:TRUE");
    extend(x, NID_subject_alt_name, (is_address ? "IP:" : "DNS:") + name);
    X509_sign(x, key, EVP_sha256());
    return x;
}

std::string pem_of(X509 *certificate) {
    BIO *out = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(out, certificate);
    char *text = nullptr;
    const long size = BIO_get_mem_data(out, &text);
    std::string pem(text, static_cast<std::size_t>(size));
    BIO_free(out);
    return pem;
}

// One direction, one read: false at the end of the stream.
bool from_plain(SSL *tls, int plain) {
    char buffer[4096];
    const ssize_t n = ::recv(plain, buffer, sizeof buffer, 0);
    return n > 0 && SSL_write(tls, buffer, static_cast<int>(n)) > 0;
}
bool from_tls(SSL *tls, int plain) {
    do {
        char buffer[4096];
        const int n = SSL_read(tls, buffer, sizeof buffer);
        if (n <= 0 || ::send(plain, buffer, static_cast<std::size_t>(n), MSG_NOSIGNAL) < 0) return false;
    } while (SSL_pending(tls) > 0);
    return true;
}

}  // namespace

TlsFront::TlsFront(std::uint16_t plain_port, const std::string &name)
    : plain_port_(plain_port),
      context_(SSL_CTX_new(TLS_server_method())),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL knows no MSG_NOSIGNAL
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = self_signed(key, name);
    pem_ = pem_of(certificate);
    SSL_CTX_use_certificate(context_, certificate);
    SSL_CTX_use_PrivateKey(context_, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr *>(&address), size);
    ::listen(listener_, 16);
    ::getsockname(listener_, reinterpret_cast<sockaddr *>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { accept(); });
}

TlsFront::~TlsFront() {
    over_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (std::thread &t : threads_)
        t.join();
    ::close(listener_);
    SSL_CTX_free(context_);
}

void TlsFront::accept() {
    for (;;) {
        const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return;
        const timeval read_timeout{3, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &read_timeout, sizeof read_timeout);
        threads_.emplace_back([this, fd] { serve(fd); });
    }
}

void TlsFront::serve(int fd) {
    const int plain = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(plain_port_);
    SSL *tls = SSL_new(context_);
    SSL_set_fd(tls, fd);
    bool open =
        SSL_accept(tls) == 1 && ::connect(plain, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0;
    while (open && !over_) {
        pollfd both[] = {{fd, POLLIN, 0}, {plain, POLLIN, 0}};
        if (::poll(both, 2, 50) < 0) break;
        if (both[0].revents != 0) open = from_tls(tls, plain);
        if (open && both[1].revents != 0) open = from_plain(tls, plain);
    }
    if (!over_ && SSL_is_init_finished(tls)) SSL_shutdown(tls);
    SSL_free(tls);
    ::close(plain);
    ::close(fd);
}

}  // namespace fleet::test
