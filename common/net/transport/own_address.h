/* own_address.h - by which of its addresses others reach this process.
 *
 * One rule for every role: the address of the interface that leads to the scheduler, as a number.  A host's name is
 * never shown to others, for they may know it under another name, or another host under this one.
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
    char host[OWN_ADDRESS_BYTES];        /* what others dial: "10.0.0.2", "::1" */
    char listen[OWN_ADDRESS_BYTES + 16]; /* for transport_listen(): "tcp://10.0.0.2:0" */
} own_address;

typedef struct {
    const char
        *given; /* the setting `host`, which comes first; "", "*", "0.0.0.0" or "::": not said */
    const char *scheduler; /* its name, its number, or a whole address such as ipc:///x */
    uint32_t port;
    uint64_t patience_ms; /* for its name to resolve, and for a way there */
} own_address_query;

/* With a whole address, and with one on loopback, it is loopback.  Where the scheduler's name means loopback on its own
 * host alone (Debian's 127.0.1.1), it is the interface of the default route, or the only one.
 * What was given is listened for on all interfaces, for it may be a name, or a gateway's address.
 * Errors  TIMED_OUT    the scheduler's name does not resolve, or no interface leads there
 *         BAD_SETTING  several interfaces, and nothing says which */
pen_status own_address_find(const own_address_query *query, own_address *own, pen_error *why);

/* What others dial, "tcp://HOST:PORT", of what is listened at. */
void own_address_show(const own_address *own, const char *listening, char *text, size_t size);

/* The own side of the way to an address, as a number; asks the system and sends nothing.  0, or errno. */
int own_address_towards(const struct sockaddr *to, socklen_t to_size, char *host, size_t size);

/* A name that means loopback here although it does not say so. */
bool own_address_is_here(const char *name);
/* A name or number of this host, loopback among them. */
bool own_address_is_ours(const char *name);

#endif
