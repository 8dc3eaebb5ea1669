/* client.h - the link of a worker to its job, the shell around exchange and liaison: one thread with its sockets.
 *
 * DESIGN.  The thread "pen-io" owns the loop, the transports, the liaison and the exchange.
 * Threads of the program reach it by posting requests (request.task) and tensors
 * (pen_tensor.ready); it reaches them by ending requests.  Nothing else is shared but counters, the
 * failure flag and memory that a request has lent.
 */
#ifndef WORKER_CLIENT_H
#define WORKER_CLIENT_H

#include "common/base/buf.h"
#include "common/base/loop.h"
#include "common/net/transport/lifeline.h"
#include "common/net/transport/reach.h"
#include "common/net/transport/transport.h"
#include "worker/io/commands.h"
#include "worker/collective/engine/engine.h"
#include "worker/context.h"
#include "worker/io/job_link.h"
#include "worker/io/liaison.h"
#include "worker/io/requests.h"

typedef struct client client;

typedef struct { /* one lane to one shard */
    client *owner;
    transport *t;
    uint32_t shard, lane;
    reach reach;        /* of the first lane: the others have the same way */
    bool is_up, is_cut; /* cut: to be closed and dialled again before the next sleep */
} lane_link;

typedef struct { /* of an epoch: a copy of the message that said it */
    wire_arena *arena;
    uint64_t term, epoch;
    uint32_t n_workers, n_servers, n_replicas;
    const wire_member *worker, *server;
    const wire_replica *replica;
} client_record;

typedef struct {    /* [n_shards] */
    uint64_t *to;   /* incarnations of the servers that hold them; 0: nobody does */
    char **address; /* NULL: nobody does */
    char **server;  /* "server 1 (devbox)" */
} client_routes;

typedef struct client_trace client_trace;

enum { CLIENT_DRAWN_MAX = 4 }; /* chunks of first values that are under way at a time */

typedef struct {
    bool is_sender;
    uint32_t next; /* chunk */
    void *piece[CLIENT_DRAWN_MAX];
} client_drawing;

struct client {
    job_link link;
    pen_ctx *ctx;
    loop *loop;
    pthread_t thread;
    bool has_thread;

    lifeline *control;
    liaison *liaison;
    requests *requests;
    commands *commands;
    char control_address[300];
    char refusal[96]; /* of the newest attempt to reach the scheduler; "": none */
    wire_arena *arena;
    wire_out out;
    loop_timer timer, look; /* look: at what came for collectives, and for what is missing */

    /* From EPOCH on: client_route.c. */
    client_record record;           /* the newest */
    uint32_t n_workers;             /* ranks that ever were: one more than the highest */
    uint64_t *incarnation;          /* [n_workers] 0: absent */
    char **worker_host, **old_host; /* [n_workers]; old_host: while a record is installed */
    uint32_t n_old_hosts;
    bool is_late; /* the job was under way when this worker came */

    /* From PLAN on. */
    plan *plan;
    uint32_t *shard; /* [n_partitions] */
    int64_t restore;
    uint32_t n_shards, n_links, ranks_max, n_first_places;
    wire_replica *first_place; /* [n_first_places] where PLAN put the shards */
    client_routes route;
    lane_link *links;   /* [n_shards * lanes] */
    uint64_t looked_ms; /* at the links, the last time */
    exchange *exchange; /* from COMMITTED on */
    uint32_t *crc;      /* scratch of a message */

    client_drawing drawing; /* rank 0's first values of those, while they are sent */

    request *join, *commit, *leave, *snapshots; /* requests in progress; snapshots are linked */
    request *disputes; /* refused because ranks disagree; they wait for the verdict, linked */
    pen_error dispute; /* what the first of them was told: said when no verdict comes */
    uint64_t dispute_due_ms;
    loop_task stop;
    uint64_t holds; /* buffers of the program that the transport still reads */
    int abort_fd;
    bool is_leaving, is_loading, has_failed;
    bool has_plan, is_ready; /* ready: has reached all that it needs, and said so */

    pthread_mutex_t asks_lock; /* what collectives ask, on its way from other threads */
    struct client_ask *asks;
    loop_task asks_task;

    uint64_t beat_seq, beat_ns; /* the newest, and when it left, for the timeline */
    client_trace *trace;        /* client_trace.c; NULL: off */

    wire_stat beat_stat[STAT_COUNT + CONTEXT_METRICS_MAX];
    char beat_call[128];
};

/* The link of a job that is not alone. */
static inline client *client_of(const pen_ctx *ctx)
{
    return (client *)ctx->link;
}

/* client_net.c: sockets and messages */
/* "tcp://HOST:PORT" of the scheduler, or the address of another transport. */
void client_scheduler_address(const pen_ctx *ctx, char *text, size_t size);
pen_status client_dial_control(client *c, pen_error *why);
pen_status client_dial_links(client *c, pen_error *why);
bool client_has_links(const client *c);                /* all that are needed are there */
void client_tell_exchange(client *c, uint64_t now_ms); /* of those that were there before it */
void client_close_links(client *c);
void client_look_at_links(client *c,
                          uint64_t now_ms); /* tells the scheduler who cannot be reached */
void client_say_unreached(client *c, int32_t role, int32_t rank, const char *address,
                          const char *words);
void client_redial_cut(client *c);
void client_say(void *user, const wire_control *message);
void client_renew(void *user); /* the scheduler is silent: perhaps only the connection is dead */
void client_cut(void *user, uint32_t shard, uint32_t lane);
void client_cut_shard(client *c, uint32_t shard); /* all its lanes: it lies elsewhere now */
bool client_store(void *user, void *to, const void *from, size_t size, uint32_t crc);
const char *client_probe(void *user); /* what listens at the scheduler's address */

/* client_record.c */
bool client_record_copy(client_record *to, const wire_control *epoch); /* false: no memory */
void client_record_free(client_record *r);
const wire_member *client_find_worker(const client_record *r, int32_t rank); /* NULL: none */
const wire_member *client_find_server(const client_record *r, int32_t rank); /* likewise */

/* client_route.c */
pen_status client_route_epoch(client *c, const wire_control *m, pen_error *why);
pen_status client_route_plan(client *c, const wire_control *m, pen_error *why);
void client_route_fini(client *c);
void client_tell_members(client *c,
                         int64_t after); /* the program, from the step behind that one on */
bool client_is_member(const client *c);  /* the newest record has this process */

/* client_place.c: where this worker is, as the first record says */
void client_take_place(client *c, const wire_control *epoch);

/* client_event.c */
void client_tell_events(client *c, const client_record *before); /* who came and went since */
void client_tell_lost(client *c, int32_t rank, const char *text);
void client_tell_stopping(client *c);

/* client_command.c */
pen_status client_make_requests(client *c, pen_error *why);
void client_begin_command(client *c, request *r, uint64_t now_ms);
void client_begin_store(client *c, request *r, uint64_t now_ms);
void client_answer(job_link *l, pen_call *call); /* any thread */

/* client_coll.c */
typedef struct client_ask client_ask;
extern const coll_job client_coll_job; /* its user is the client */
void client_coll_joined(client *c, const wire_control *epoch);
void client_coll_fini(client *c);
uint32_t client_prove(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                      uint64_t *number);
void client_lost(void *user, int32_t rank, const pen_error *why);
void client_faulted(void *user, uint64_t group, uint64_t call, const pen_error *why);
void client_shrunk(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
                   const pen_error *why);
void client_record_please(void *user, uint64_t id, uint64_t asker);
void client_look(
    void *user); /* at what came for collectives, and for what is missing; again and again */

/* client_request.c */
void client_start(job_link *l, request *r);
/* In the loop's thread: what a job that has failed, or has no servers, cannot do has ended. */
bool client_refuses(client *c, request *r);
void client_refuse_for_memory(request *r);

/* client_push.c */
pen_status client_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                       const exchange_piece *pieces, uint32_t n);

/* client_unit.c */
bool client_gives_back(const client *c);
void client_returned(void *user, uint32_t tensor);

/* client_draw.c: first values that no worker holds whole */
typedef enum { CLIENT_DRAW_OVER, CLIENT_DRAW_UNDER_WAY, CLIENT_DRAW_FAILED } client_draw_state;
client_draw_state client_draw_next(client *c, pen_error *why); /* what was sent before is there */
bool client_is_drawing(const client *c, const void *token);
void client_draw_fini(client *c);

/* client_trace.c: what is under way, for the timeline; all do nothing when it is off */
void client_trace_sent(client *c, uint32_t shard, const wire_data *d, uint64_t begun_ns);
void client_trace_came(client *c, uint32_t shard, const wire_data *d, uint64_t begun_ns);
void client_trace_step_over(client *c);
void client_trace_fini(client *c);

/* client.c */
void client_end(request **place, const pen_error *why); /* NULL there: nothing */
void client_end_snapshots(client *c, const pen_error *why, int64_t step);
/* Ranks disagree, and cannot go on.  Each shard names the pair that it saw first, so whoever is refused waits until the
 * scheduler has chosen one sentence: all then say the same. */
void client_dispute(client *c, request *r, const pen_error *why);
void client_fail(client *c, const pen_error *why);
void client_report(client *c, const pen_error *why); /* fails, and tells the scheduler */
void client_after(client *c); /* after every event: tell what ended, set the timer */
bool client_is_reaching(
    const client *c); /* the plan is there, and what it needs is not reached yet */

/* client_actions.c */
extern const liaison_actions client_liaison_actions; /* their user is the client */
void client_before_sleep(void *user);

#endif
