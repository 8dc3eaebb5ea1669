/* tcp_address.h - "tcp://HOST:PORT" of a host as people and launchers write it. */
#ifndef COMMON_TRANSPORT_TCP_ADDRESS_H
#define COMMON_TRANSPORT_TCP_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

/* An IPv6 number may come with brackets or without; the address has them.  A name, a number of IPv4 and "*" stay as they
 * are, and so does a whole address ("ipc://x").  What does not fit in `size` bytes is cut off. */
void tcp_address_format(const char *host, uint32_t port, char *text, size_t size);

#endif
