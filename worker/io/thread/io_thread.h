/* io_thread.h - a worker's link to its job: the io thread, its sockets, the ps client and the membership client.
 *
 * DESIGN.  The thread "pen-io" owns the loop, the transports, the membership client and the ps
 * client.  Threads of the program post requests (request.task) and tensors (pen_tensor.ready) to
 * it; it answers by ending requests.  Both sides share only counters, the failure flag and memory
 * that a request has lent.
 */
#ifndef WORKER_IO_THREAD_H
#define WORKER_IO_THREAD_H

#include "common/base/loop.h"
#include "common/containers/buf.h"
#include "common/net/lifeline.h"
#include "common/net/reach.h"
#include "common/net/transport/transport.h"
#include "worker/collective/engine/engine.h"
#include "worker/context.h"
#include "membership/commands.h"
#include "worker/io/job_link.h"
#include "worker/io/membership_client.h"
#include "worker/io/unanswered.h"

typedef struct io_thread io_thread;

typedef struct { /* one lane to one shard */
    io_thread *owner;
    transport *t;
    uint32_t shard, lane;
    reach reach;                 /* of the first lane; all lanes take the same route */
    bool is_up, is_disconnected; /* is_disconnected: close and dial again before the next sleep */
} lane_link;

typedef struct {    /* [n_shards] */
    uint64_t *to;   /* incarnations of the servers that hold them; 0: no server does */
    char **address; /* NULL: no server holds it */
    char **server;  /* "server 1 (devbox)" */
} io_routes;

/* Facts of the view at COMMITTED, equal on all ranks.  Written before pen_commit() returns and never again: the program's
 * threads read these, since an epoch may replace the view at any time. */
typedef struct {
    uint32_t nodes;     /* of the workers */
    bool has_neighbors; /* some node has several */
    bool shares_memory; /* each worker with all others of its node */
    bool has_copies;    /* of shards, on other servers */
} io_committed;

typedef struct io_trace io_trace;

enum { IO_INIT_MAX = 4 }; /* chunks of initial values in flight at a time */

typedef struct {
    bool is_sender;
    uint32_t next; /* chunk */
    void *piece[IO_INIT_MAX];
} io_init_progress;

struct io_thread {
    job_link link;
    pen_ctx *ctx;
    loop *loop;
    pthread_t thread;
    bool has_thread;

    lifeline *control;
    membership_client *membership_client;
    unanswered *unanswered;
    commands *commands;
    char control_address[300];
    char refusal[96]; /* why the newest attempt to reach the scheduler failed; "": none */
    wire_arena *arena, *view_arena; /* of the message being handled; of the view */
    wire_out out;
    loop_timer timer, look; /* look: io_look() */
    uint64_t look_ms;       /* its present interval */

    /* From EPOCH on: io_route.c. */
    wire_epoch view;                /* the newest view, in view_arena; for this thread only */
    uint32_t n_workers;             /* highest rank so far, plus one */
    uint64_t *incarnation;          /* [n_workers] 0: absent */
    char **worker_host, **old_host; /* [n_workers]; old_host: while a view is installed */
    uint32_t n_old_hosts;
    bool is_late; /* this worker joined a running job */

    /* From PLAN on. */
    plan *plan;
    uint32_t *shard; /* [n_partitions] */
    int64_t restore;
    uint32_t n_shards, n_links, ranks_max, n_first_places;
    wire_replica *first_place; /* [n_first_places] where PLAN put the shards */
    io_routes route;
    lane_link *links;     /* [n_shards * lanes] */
    uint64_t looked_ms;   /* time of the last look at the links */
    ps_client *ps_client; /* from COMMITTED on */
    io_committed committed;
    uint32_t *crc; /* scratch of a message */

    io_init_progress initializing; /* initial values, while rank 0 sends them */
    uint32_t no_values;            /* what a part of a table has in place of values arrives here */

    request *join, *commit, *leave, *snapshots; /* requests in progress; snapshots are linked */
    request *disputes; /* linked: refused because ranks disagree; they wait for the verdict */
    pen_error dispute; /* the first refusal, used if no verdict comes */
    uint64_t dispute_due_ms;
    loop_task stop, abort;
    uint64_t holds; /* buffers of the program that the transport still reads */
    bool is_leaving, is_loading, has_failed;
    bool has_plan, is_ready; /* ready: all connections are up, and READY was sent */

    pthread_mutex_t coll_requests_lock; /* collectives post requests from other threads */
    struct io_coll_request *coll_requests;
    loop_task coll_requests_task;

    uint64_t beat_seq, beat_ns; /* of the newest beat, for the timeline */
    io_trace *trace;            /* io_trace.c; NULL: off */

    wire_stat beat_stat[STAT_COUNT + CONTEXT_METRICS_MAX];
    char beat_call[128];
};

/* The link of a worker that is not alone. */
static inline io_thread *io_of(const pen_ctx *ctx)
{
    return (io_thread *)ctx->link;
}

/* io_net.c: sockets and messages */
/* "tcp://HOST:PORT" of the scheduler, or the address of another transport. */
void io_scheduler_address(const pen_ctx *ctx, char *text, size_t size);
pen_status io_dial_control(io_thread *c, pen_error *why);
pen_status io_dial_links(io_thread *c, pen_error *why);
bool io_has_links(const io_thread *c);                   /* all needed lanes are up */
void io_notify_ps_client(io_thread *c, uint64_t now_ms); /* of lanes that are up already */
void io_close_links(io_thread *c);
/* Reports peers that cannot be reached to the scheduler. */
void io_look_at_links(io_thread *c, uint64_t now_ms);
void io_send_unreached(io_thread *c, int32_t role, int32_t rank, const char *address,
                       const char *words);
void io_redial_disconnected(io_thread *c);
void io_send_control(void *user, const wire_control *message);
void io_renew(void *user); /* the scheduler is silent: opens a second connection */
void io_disconnect(void *user, uint32_t shard, uint32_t lane);
void io_disconnect_shard(io_thread *c, uint32_t shard); /* all its lanes: the shard has moved */
bool io_store(void *user, void *to, const void *from, size_t size, uint32_t crc);
bool io_store_rows(void *user, ps_client_sink *to, const void *from, size_t size, uint32_t crc);
const char *io_probe(void *user); /* what answers at the scheduler's address */

/* io_view.c */
void io_view_settle(io_thread *c); /* at COMMITTED: writes c->committed */
const wire_member *io_find(const wire_member *member, uint32_t n, int32_t rank); /* NULL: none */
bool io_is_member(const io_thread *c);                     /* the newest view lists this process */
void io_on_place(io_thread *c, const wire_control *epoch); /* from the first view */
/* Events of workers that came or left since `before`. */
void io_notify_events(io_thread *c, const wire_epoch *before);
void io_tell(io_thread *c, pen_event_kind kind, int32_t rank, const char *text);

/* io_route.c */
/* m, in c->arena, becomes the view: c->arena and c->view_arena are swapped. */
pen_status io_route_epoch(io_thread *c, const wire_control *m, pen_error *why);
pen_status io_route_plan(io_thread *c, const wire_control *m, pen_error *why);
void io_route_fini(io_thread *c);
/* The program sees the new members from the step after `after` on. */
void io_notify_members(io_thread *c, int64_t after);

/* io_command.c */
pen_status io_make_requests(io_thread *c, pen_error *why);
void io_begin_command(io_thread *c, request *r, uint64_t now_ms);
void io_begin_store(io_thread *c, request *r, uint64_t now_ms);
void io_answer(job_link *l, command_call *call); /* any thread */

/* io_coll.c */
typedef struct io_coll_request io_coll_request;
extern const coll_job io_coll_job; /* its user is the io_thread */
pen_status io_coll_joined(io_thread *c, const wire_control *epoch, pen_error *why);
void io_coll_fini(io_thread *c);
uint32_t io_prove(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                  uint64_t *number);
void io_lost(void *user, int32_t rank, const pen_error *why);
void io_faulted(void *user, uint64_t group, uint64_t call, const pen_error *why);
void io_shrunk(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
               const pen_error *why);
void io_recorder_please(void *user, uint64_t id, uint64_t asker);
void io_look(void *user); /* polls collectives and connections, and rearms itself */

/* io_request.c */
void io_start(job_link *l, request *r);
/* In the io thread.  True: the request has ended, because the job has failed or has no servers. */
bool io_refuses(io_thread *c, request *r);
void io_refuse_for_memory(request *r);

/* io_slots.c */
void io_slots_begin(io_thread *c, request *r, uint64_t now_ms);

/* io_push.c */
pen_status io_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                   const ps_client_piece *pieces, uint32_t n);

/* io_unit.c */
bool io_gives_back(const io_thread *c); /* any thread, from COMMITTED on */
void io_returned(void *user, uint32_t tensor);

/* io_init.c: initial values of tensors that no worker holds whole */
typedef enum { IO_INIT_OVER, IO_INIT_UNDER_WAY, IO_INIT_FAILED } io_init_state;
io_init_state io_init_next(io_thread *c, pen_error *why); /* after the chunks before have arrived */
bool io_is_initializing(const io_thread *c, const void *token);
void io_init_fini(io_thread *c);

/* io_trace.c: messages in flight, for the timeline; no-ops when it is off */
void io_trace_sent(io_thread *c, uint32_t shard, const wire_data *d, uint64_t begun_ns);
void io_trace_came(io_thread *c, uint32_t shard, const wire_data *d, uint64_t begun_ns);
void io_trace_step_over(io_thread *c);
void io_trace_fini(io_thread *c);

/* io_thread.c */
void io_end(request **place, const pen_error *why); /* NULL there: nothing */
void io_end_snapshots(io_thread *c, const pen_error *why, int64_t step);
/* The job cannot go on, and ranks may give different reasons, as each shard names the first pair of ranks that disagree:
 * the request waits until the scheduler has chosen one sentence for all. */
void io_dispute(io_thread *c, request *r, const pen_error *why);
void io_fail(io_thread *c, const pen_error *why);
/* Fails, and reports *why to the scheduler, which makes it the verdict of all. */
void io_report(io_thread *c, const pen_error *why);
void io_after(io_thread *c);             /* after every event: ends requests and sets the timer */
bool io_is_reaching(const io_thread *c); /* it has the plan, but connections are missing */

/* io_actions.c */
extern const membership_client_actions io_membership_client_actions; /* user: the io_thread */
void io_before_sleep(void *user);

#endif
