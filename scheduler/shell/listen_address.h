/* listen_address.h - names of this host: where the scheduler listens, and how others reach it. */
#ifndef SCHEDULER_LISTEN_ADDRESS_H
#define SCHEDULER_LISTEN_ADDRESS_H

#include <stddef.h>

/* The name for others to dial, for sentences: `host`, or for all addresses ("*") this host's name, written to `name`. */
const char *listen_address_master(const char *host, char *name, size_t size);

/* The address to listen on: a name becomes its number; numbers, interfaces and "*" stay.  Debian's /etc/hosts gives a host's
 * own name a loopback address, which no other host reaches: such a name becomes "*". */
void listen_address_of(const char *host, char *text, size_t size);

/* `master` with the port of `bound`: "10.0.0.7:29500".  A whole address ("ipc:///run/job") loses its scheme. */
void listen_address_dial(const char *master, const char *bound, char *text, size_t size);

/* This host's name, or `master` if it has none. */
void listen_address_host(const char *master, char *text, size_t size);

#endif
