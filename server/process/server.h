/* server.h - a server process: shards on threads, a control plane, a store.
 *
 * DESIGN.  Threads, and what each owns:
 *   main    (the caller of server_serve) connection to the scheduler, plan, shutdown
 *   shard   one each: a loop, a listening endpoint, one shard (server/shard/shard.h)
 *   store   LMDB and everything slow: allocating for a plan, restoring, writing snapshots
 * They share only counters and the plan, which is read-only, and talk through loop_post() and bufs.  Main never waits
 * for a disk, so a slow disk never delays its heartbeats.
 */
#ifndef SERVER_H
#define SERVER_H

#include "server/process/server_settings.h"

typedef struct server server;

/* Listens, reads the list of snapshots, starts the threads.  Settings are copied.  handlers[n] of this program are
 * BORROWED until server_close(); those of the setting `plugin` come to them.
 * Errors  UNREACHABLE  cannot listen.   STORE  unusable directory.   BAD_SETTING  a handler or plugin.   NO_MEMORY
 */
pen_status server_open(const server_settings *settings, const pen_handler *handlers, int n,
                       server **s, pen_error *why);

/* Serves one job to its end.  PEN_OK: the scheduler sent STOP, or server_leave() was called. Otherwise *why is the
 * verdict, or describes the lost scheduler (PEER_LOST) or the failed store.  If a handler hangs, its thread remains. */
pen_status server_serve(server *s, pen_error *why);

void server_leave(server *s); /* any thread, and from a signal handler */
void server_close(server *s); /* NULL is fine; not while it serves */

#endif
