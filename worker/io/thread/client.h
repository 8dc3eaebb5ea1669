/* client.h - the link of a worker to its job: the io thread and its sockets, around ps client and membership client.
 *
 * DESIGN.  The thread "pen-io" owns the loop, the transports, the membership client and the ps client.  Threads
 * of the
 * program post requests (request.task) and tensors (pen_tensor.ready) to it; it answers by ending requests. 
 * Both sides
 * share only counters, the failure flag and memory that a request has lent.
 */
#ifndef WORKER_CLIENT_H
#define WORKER_CLIENT_H

#include "common/base/loop.h"
#include "common/containers/buf.h"
#include "common/net/lifeline.h"
#include "common/net/reach.h"
#include "common/net/transport/transport.h"
#include "worker/collective/engine/engine.h"
#include "worker/context.h"
#include "worker/io/commands.h"
#include "worker/io/job_link.h"
#include "worker/io/liaison.h"
#include "worker/io/requests.h"

typedef struct client client;

typedef struct { /* one lane to one shard */
    client *owner;
    transport *t;
    uint32_t shard, lane;
    reach reach;        /* of the first lane; the others take the same route */
    bool is_up, is_cut; /* cut: to be closed and redialled before the next sleep */
} lane_link;

typedef struct { /* of an epoch: a copy of its message */
    wire_arena *arena;
    uint64_t term, epoch;
    uint32_t n_workers, n_servers, n_replicas;
    const wire_member *worker, *server;
    const wire_replica *replica;
} client_record;

typedef struct {    /* [n_shards] */
    uint64_t *to;   /* incarnations of the servers that hold them; 0: none does */
    char **address; /* NULL: no server holds it */
    char **server;  /* "server 1 (devbox)" */
} client_routes;

typedef struct client_trace client_trace;

enum { CLIENT_DRAWN_MAX = 4 }; /* chunks of initial values in flight at a time */

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
    char refusal[96]; /* why the newest attempt to reach the scheduler failed; "": none */
    wire_arena *arena;
    wire_out out;
    loop_timer timer, look; /* look: client_look() */

    /* From EPOCH on: client_route.c. */
    client_record record;           /* the newest */
    uint32_t n_workers;             /* one more than the highest rank there ever was */
    uint64_t *incarnation;          /* [n_workers] 0: absent */
    char **worker_host, **old_host; /* [n_workers]; old_host: while a record is installed */
    uint32_t n_old_hosts;
    bool is_late; /* this worker joined a running job */

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

    client_drawing drawing; /* initial values, while rank 0 sends them */

    request *join, *commit, *leave, *snapshots; /* requests in progress; snapshots are linked */
    request *disputes; /* refused because ranks disagree; they wait for the verdict; linked */
    pen_error dispute; /* the first refusal, used when no verdict comes */
    uint64_t dispute_due_ms;
    loop_task stop;
    uint64_t holds; /* buffers of the program that the transport still reads */
    int abort_fd;
    bool is_leaving, is_loading, has_failed;
    bool has_plan, is_ready; /* ready: all connections are up, and READY was sent */

    pthread_mutex_t asks_lock; /* of requests of collectives from other threads */
    struct client_ask *asks;
    loop_task asks_task;

    uint64_t beat_seq, beat_ns; /* of the newest beat, for the timeline */
    client_trace *trace;        /* client_trace.c; NULL: off */

    wire_stat beat_stat[STAT_COUNT + CONTEXT_METRICS_MAX];
    char beat_call[128];
};

/* The link of a worker that is not alone. */
static inline client *client_of(const pen_ctx *ctx)
{
    return (client *)ctx->link;
}

/* client_net.c: sockets and messages */
/* "tcp://HOST:PORT" of the scheduler, or the address of another transport. */
void client_scheduler_address(const pen_ctx *ctx, char *text, size_t size);
pen_status client_dial_control(client *c, pen_error *why);
pen_status client_dial_links(client *c, pen_error *why);
bool client_has_links(const client *c);                /* all lanes that are needed are up */
void client_tell_exchange(client *c, uint64_t now_ms); /* of lanes that were up before it */
void client_close_links(client *c);
void client_look_at_links(client *c,
                          uint64_t now_ms); /* tells the scheduler which peers cannot be reached */
void client_say_unreached(client *c, int32_t role, int32_t rank, const char *address,
                          const char *words);
void client_redial_cut(client *c);
void client_say(void *user, const wire_control *message);
void client_renew(void *user); /* the scheduler is silent: opens a second connection */
void client_cut(void *user, uint32_t shard, uint32_t lane);
void client_cut_shard(client *c, uint32_t shard); /* all its lanes: the shard has moved */
bool client_store(void *user, void *to, const void *from, size_t size, uint32_t crc);
const char *client_probe(void *user); /* what answers at the scheduler's address */

/* client_record.c */
bool client_record_copy(client_record *to, const wire_control *epoch); /* false: no memory */
void client_record_free(client_record *r);
const wire_member *client_find(const wire_member *member, uint32_t n,
                               int32_t rank); /* NULL: none */

/* client_route.c */
pen_status client_route_epoch(client *c, const wire_control *m, pen_error *why);
pen_status client_route_plan(client *c, const wire_control *m, pen_error *why);
void client_route_fini(client *c);
void client_tell_members(client *c,
                         int64_t after); /* to the program, from the step after that one on */
bool client_is_member(const client *c);  /* the newest view lists this process */

/* client_place.c: node and local rank, from the first view */
void client_take_place(client *c, const wire_control *epoch);

/* client_event.c */
void client_tell_events(client *c,
                        const client_record *before); /* workers that came and went since */
void client_tell(client *c, pen_event_kind kind, int32_t rank, const char *text);

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
void client_look(void *user); /* polls collectives and connections, and rearms itself */

/* client_request.c */
void client_start(job_link *l, request *r);
/* In the io thread. True: the request has ended, because the job has failed or has no servers. */
bool client_refuses(client *c, request *r);
void client_refuse_for_memory(request *r);

/* client_push.c */
pen_status client_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                       const exchange_piece *pieces, uint32_t n);

/* client_unit.c */
bool client_gives_back(const client *c);
void client_returned(void *user, uint32_t tensor);

/* client_draw.c: initial values of tensors that no worker holds whole */
typedef enum { CLIENT_DRAW_OVER, CLIENT_DRAW_UNDER_WAY, CLIENT_DRAW_FAILED } client_draw_state;
client_draw_state client_draw_next(client *c,
                                   pen_error *why); /* after the chunks before have arrived */
bool client_is_drawing(const client *c, const void *token);
void client_draw_fini(client *c);

/* client_trace.c: messages in flight, for the timeline; no-ops when it is off */
void client_trace_sent(client *c, uint32_t shard, const wire_data *d, uint64_t begun_ns);
void client_trace_came(client *c, uint32_t shard, const wire_data *d, uint64_t begun_ns);
void client_trace_step_over(client *c);
void client_trace_fini(client *c);

/* client.c */
void client_end(request **place, const pen_error *why); /* NULL there: nothing */
void client_end_snapshots(client *c, const pen_error *why, int64_t step);
/* Ranks disagree and cannot go on.  Each shard names the pair that it saw first, so a refused request waits until the
 * scheduler has chosen one sentence for all ranks. */
void client_dispute(client *c, request *r, const pen_error *why);
void client_fail(client *c, const pen_error *why);
void client_report(client *c,
                   const pen_error *why); /* fails, and the scheduler makes it the verdict of all */
void client_after(client *c);             /* after every event: ends requests and sets the timer */
bool client_is_reaching(const client *c); /* has the plan, and connections are still missing */

/* client_actions.c */
extern const liaison_actions client_liaison_actions; /* their user is the client */
void client_before_sleep(void *user);

#endif
