/* tcp_address.h - "tcp://HOST:PORT" from a host as written by people and launchers. */
#ifndef COMMON_TRANSPORT_TCP_ADDRESS_H
#define COMMON_TRANSPORT_TCP_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

/* Adds brackets to an IPv6 address.  Names, IPv4 addresses, "*" and complete addresses ("ipc://x") stay unchanged.
 * Truncates at `size` bytes. */
void tcp_address_format(const char *host, uint32_t port, char *text, size_t size);

#endif
