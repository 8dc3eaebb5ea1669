/* server.h - a server process: shards on threads, a control plane, a store.
 *
 * DESIGN.  Threads, and what each owns:
 *   main    (who called server_serve) the connection to the scheduler, the plan, the end of it all
 *   shard   one each: a loop, a listening endpoint, one shard (server/shard/shard.h)
 *   store   LMDB, and everything that takes long: making memory for a plan, restoring, writing
 * snapshots They share nothing but counters, and the plan, which nobody writes; between them go
 * loop_post() and bufs.  Main never waits for a disk, so its heartbeats are evidence of life and not
 * of a fast disk.
 */
#ifndef SERVER_H
#define SERVER_H

#include "server/process/server_settings.h"

typedef struct server server;

/* Listens, reads which snapshots there are, starts the threads.  Settings are copied.
 * Errors  UNREACHABLE  no address to listen at.   STORE  the directory cannot be used.   NO_MEMORY
 */
pen_status server_open(const server_settings *settings, server **s, pen_error *why);

/* Serves one job to its end.  PEN_OK: the scheduler said STOP, or server_leave() was called; else
 * *why is the verdict, or the sentence about a lost scheduler (PEER_LOST) or store. */
pen_status server_serve(server *s, pen_error *why);

void server_leave(server *s); /* any thread, and from a signal handler */
void server_close(server *s); /* NULL is fine; not while it serves     */

#endif
