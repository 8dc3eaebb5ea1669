/* tcp_address.h - "tcp://HOST:PORT" from a host as written by people and launchers; free ports. */
#ifndef COMMON_TRANSPORT_TCP_ADDRESS_H
#define COMMON_TRANSPORT_TCP_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Adds brackets to an IPv6 address.  Names, IPv4 addresses, "*" and complete addresses ("ipc://x") stay unchanged.
 * Truncates at `size` bytes. */
void tcp_address_format(const char *host, uint32_t port, char *text, size_t size);

/* The socket address of a numeric "tcp://ADDRESS:PORT"; false: it is not one. */
bool tcp_address_parse(const char *address, struct sockaddr_storage *at, socklen_t *size);

/* A port of 127.0.0.1 that nobody has, or -1 with errno.  *fd, which is not inherited by programs, keeps it from others until
 * it is closed; who sets SO_REUSEADDR may bind the port too. */
int tcp_reserve_port(int *fd);

#endif
