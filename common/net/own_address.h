/* own_address.h - the address by which others reach this process.
 *
 * One rule for every role: the numeric address of the interface that leads to the scheduler.  A host's name is
 * never sent to others: they may know it by another name, or another host by this one.
 */
#ifndef COMMON_TRANSPORT_OWN_ADDRESS_H
#define COMMON_TRANSPORT_OWN_ADDRESS_H

#include "penstock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { OWN_ADDRESS_BYTES = 512 };

typedef struct {
    char host[OWN_ADDRESS_BYTES];        /* dialled by others: "10.0.0.2", "::1" */
    char listen[OWN_ADDRESS_BYTES + 16]; /* for transport_listen(): "tcp://10.0.0.2:0" */
} own_address;

typedef struct {
    const char *given;     /* the setting `host`, which wins; "", "*", "0.0.0.0" or "::": not set */
    const char *scheduler; /* its name, number, or an address like ipc:///x */
    uint32_t port;
    uint64_t patience_ms; /* for its name to resolve and a route to exist */
} own_address_query;

/* Loopback for a complete address or one on loopback.  If the scheduler's name is loopback on its own host only
 * (Debian's 127.0.1.1), the interface of the default route, or the only one. A given host listens on all
 * interfaces, as it may be a name, or a gateway's address.
 * Errors  TIMED_OUT    the scheduler's name does not resolve, or no interface leads there
 *         BAD_SETTING  several interfaces and no choice */
pen_status own_address_find(const own_address_query *query, own_address *own, pen_error *why);

/* The address for others, "tcp://HOST:PORT", of a listening address. */
void own_address_show(const own_address *own, const char *listening, char *text, size_t size);

/* The local address of the route to an address, as a number; sends nothing.  0, or errno. */
int own_address_towards(const struct sockaddr *to, socklen_t to_size, char *host, size_t size);

/* A name that resolves to loopback here. */
bool own_address_is_here(const char *name);
/* A name or number of this host, including loopback. */
bool own_address_is_ours(const char *name);

#endif
