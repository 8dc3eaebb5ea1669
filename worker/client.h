/* client.h - the shell around exchange and liaison: one thread with its sockets, for one context.
 *
 * DESIGN.  The thread "pen-io" owns the loop, the transports, the liaison and the exchange.
 * Threads of the program reach it by posting requests (request.task) and tensors
 * (pen_tensor.ready); it reaches them by ending requests.  Nothing else is shared but counters, the
 * failure flag and memory that a request has lent.
 */
#ifndef WORKER_CLIENT_H
#define WORKER_CLIENT_H

#include "common/buf.h"
#include "common/loop.h"
#include "common/transport/transport.h"
#include "worker/calls.h"
#include "worker/context.h"
#include "worker/liaison.h"

typedef struct client client;

typedef struct { /* one lane to one shard */
    client *owner;
    transport *t;
    uint32_t shard, lane;
    bool is_cut; /* to be closed and dialled again before the next sleep */
} lane_link;

struct client {
    pen_ctx *ctx;
    loop *loop;
    pthread_t thread;
    bool has_thread;

    transport *control;
    liaison *liaison;
    calls *calls;
    char control_address[300];
    wire_arena *arena;
    wire_out out;
    loop_timer timer;

    /* From EPOCH on. */
    uint64_t term, epoch;
    uint32_t n_shards, n_links, n_workers;
    lane_link *links;         /* [n_shards * lanes] */
    uint64_t *to;             /* [n_shards] incarnations of their servers */
    char **address, **server; /* [n_shards] */
    char **worker_host;       /* [n_workers] */

    /* From PLAN on. */
    plan *plan;
    uint32_t *shard; /* [n_partitions] */
    int64_t restore;
    exchange *exchange;
    exchange_request *step;
    uint32_t *crc; /* scratch of a message */
    void *zeros;   /* as many as the largest gradient; made when first needed */

    request *join, *commit, *leave, *snapshots; /* requests in progress; snapshots are linked */
    loop_task step_open, stop;
    uint64_t step_index;
    uint64_t holds; /* buffers of the program that the transport still reads */
    int abort_fd;
    bool is_leaving, is_loading;

    wire_stat beat_stat[STAT_COUNT + CONTEXT_METRICS_MAX];
    char beat_call[128];
};

/* client_net.c: sockets and messages */
pen_status client_dial_control(client *c, pen_error *why);
pen_status client_dial_links(client *c, pen_error *why);
void client_close_links(client *c);
void client_redial_cut(client *c);
void client_say(void *user, const wire_control *message);
pen_status client_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                       const exchange_piece *pieces, uint32_t n);
void client_cut(void *user, uint32_t shard, uint32_t lane);
bool client_store(void *user, void *to, const void *from, size_t size, uint32_t crc);
const char *client_probe(void *user); /* what listens at the scheduler's address */

/* client_command.c */
pen_status client_make_calls(client *c, pen_error *why);
void client_begin_command(client *c, request *r, uint64_t now_ms);
void client_answer(pen_ctx *ctx, pen_call *call); /* any thread */

/* client.c */
void client_fail(client *c, const pen_error *why);
void client_after(client *c); /* after every event: tell what ended, set the timer */

#endif
