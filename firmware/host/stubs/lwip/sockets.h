// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from lwIP's documentation. See README.md. The real header has its own types; on Linux
// those of the C library do.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__linux__)
#include <netinet/in.h>
#include <sys/socket.h>
#else
typedef uint32_t socklen_t;
typedef uint16_t in_port_t;
#define AF_INET 2
#define SOCK_DGRAM 2
#define MSG_DONTWAIT 0x08
struct in_addr {
    uint32_t s_addr;
};
struct sockaddr {
    uint8_t sa_len, sa_family;
    char sa_data[14];
};
struct sockaddr_in {
    uint8_t sin_len, sin_family;
    in_port_t sin_port;
    struct in_addr sin_addr;
    char sin_zero[8];
};
struct sockaddr_storage {
    uint8_t s2_len, ss_family;
    char s2_data[26];
};
#endif

extern "C" {
int lwip_socket(int domain, int type, int protocol);
int lwip_bind(int socket, const struct sockaddr *address, socklen_t size);
int lwip_close(int socket);
ssize_t lwip_recv(int socket, void *buffer, size_t size, int flags);
ssize_t lwip_recvfrom(int socket, void *buffer, size_t size, int flags, struct sockaddr *from, socklen_t *from_size);
ssize_t lwip_sendto(int socket, const void *bytes, size_t size, int flags, const struct sockaddr *to,
                    socklen_t to_size);
}
