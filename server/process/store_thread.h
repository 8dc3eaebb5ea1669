/* store_thread.h - the inside of the store thread, shared by store_thread.c, store_plan.c and store_part.c only. */
#ifndef SERVER_STORE_THREAD_H
#define SERVER_STORE_THREAD_H

#include "proto/snapshot_part.h"
#include "server/process/server_state.h"
#include "server/process/snapshot_memory.h"

enum {
    PENDING_MAX = 4 /* snapshots with some of their captures here */
};

typedef struct {
    uint32_t n, room; /* n: captures received */
    int64_t step;
    uint32_t *shard;         /* [room] */
    shard_capture **capture; /* [room] */
} pending;

typedef struct handed_in {
    struct handed_in *next, *prev;
    uint32_t shard;
    shard_capture *capture;
} handed_in;

struct store_thread {
    server *server;
    loop *loop;
    pthread_t thread;
    bool is_running;
    const server_plan *plan;
    part_writer writer;
    pending pending[PENDING_MAX];
    int64_t written;                /* newest step whose part was written or failed */
    uint32_t *expected, n_expected; /* shards of a part */
    snapshot_memory *memory;

    pthread_mutex_t lock; /* of the fields below */
    int64_t writing;      /* step being written; -1: none */
    int64_t waiting;      /* step to be written next; -1: none */
    int64_t given_up;     /* newest step given up for a later one */
    handed_in *inbox;     /* captures the thread has not seen yet */
};

/* store_part.c */
uint64_t store_part_chunk_memory(
    const shard_capture_chunk *k);                  /* its bytes that the capture holds in memory */
void store_part_write(store_thread *t, pending *p); /* notifies main; then p is forgotten */
void store_part_forget(store_thread *t, pending *p);
pen_status store_part_open(store_thread *t, pen_error *why); /* its writer, if it is not open */
void store_part_drop_capture(store_thread *t, shard_capture *capture);

#endif
