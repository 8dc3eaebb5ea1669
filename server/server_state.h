/* server_state.h - the inside of a server process, shared by server*.c and store_thread.c only. */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H

#include "server/server.h"
#include "server/shard.h"

#include "common/loop.h"
#include "common/transport/transport.h"
#include "common/why.h"

#include <pthread.h>

enum { SERVER_SNAPSHOTS_MAX = 64 };

/* ---- tasks between threads: server_task.c ---------------------------------------------------- */
/* Runs fn(user) in the thread of `to`.  False: no memory, nothing was posted. */
bool server_post(loop *to, loop_fn fn, void *user);

/* ---- the plan, written by the store thread, then read by all --------------------------------- */
typedef struct server_shard server_shard;

typedef struct {
    server *server;
    wire_arena *arena;
    wire_control message; /* PLAN, in arena */
    plan *plan;
    uint32_t world_size, first_shard;
    uint64_t incarnation, term;
    int32_t rank;
    shard **shard; /* [shards] until they are handed to their threads */
    uint64_t idle; /* bit i: shard i has no trained chunk */
    int64_t applied;
    pen_status status;
    pen_error why;
    size_t head_size;
    char head[]; /* PLAN as it came */
} server_plan;
void server_plan_destroy(server_plan *p); /* NULL is fine */

/* ---- shard threads: server_shard.c ----------------------------------------------------------- */
typedef struct server_unsent server_unsent;

struct server_shard {
    server *server;
    uint32_t index; /* within this server */
    loop *loop;
    transport *endpoint;
    char address[320]; /* as workers dial it */
    pthread_t thread;
    bool is_running;

    shard *shard; /* NULL before the plan */
    wire_arena *arena;
    wire_out out;
    server_unsent *unsent, **unsent_end;
    uint32_t n_unsent;
    loop_timer retry;
};

pen_status server_shard_open(server_shard *s, pen_error *why);
pen_status server_shard_start(server_shard *s, pen_error *why);
void server_shard_stop(server_shard *s);  /* waits for its thread */
void server_shard_drain(server_shard *s); /* its tasks, not its messages; after stop */
void server_shard_close(server_shard *s);
shard_outside server_shard_outside(server_shard *s);

/* Posted to a shard's loop. */
typedef struct {
    server_shard *to;
    uint64_t term, epoch;
    uint32_t n_workers;
    shard *shard; /* not NULL: this is your shard from now on */
    wire_member worker[];
} server_members;
void server_shard_members(void *members); /* frees it */

typedef struct {
    server *server;
    server_shard *shard;
    int32_t rank;
    uint32_t serial; /* of the question */
    bool is_known;
    uint64_t step;
    uint32_t chunk;
    char tensor[128];
} server_question;
void server_shard_question(void *question); /* answers by server_answer() in main */

typedef struct {
    server_shard *shard;
    int64_t step;
} server_sign;
void server_shard_cut_idle(void *sign); /* frees it */

/* ---- the store thread: store_thread.c -------------------------------------------------------- */
typedef struct store_thread store_thread;
pen_status store_thread_start(server *s, store_thread **t, pen_error *why);
void store_thread_stop(store_thread *t); /* finishes what was asked; NULL is fine */

void store_thread_prepare(store_thread *t, server_plan *p); /* then server_prepared() in main */
void store_thread_cut(store_thread *t, uint32_t index, shard_cut *cut); /* any thread; OWNED */
void store_thread_forget_before(store_thread *t, int64_t step);

/* Steps of complete snapshots in a directory, ascending; a directory that is not there has none. */
pen_status store_thread_find(const char *dir, int64_t *steps, uint32_t cap, uint32_t *n,
                             pen_error *why);

/* ---- main ------------------------------------------------------------------------------------ */
typedef struct { /* how writing a part went */
    server *server;
    int64_t step;
    uint64_t bytes;
    pen_status status;
    pen_error why;
} server_part;

/* Run in main's thread; each frees what it is given. */
void server_prepared(void *plan);
void server_part_written(void *part);
void server_answer(void *question);

/* From any thread: this job has to end. */
void server_report(server *s, const pen_error *error);

struct server {
    server_settings settings;
    stat_set stats;
    loop *loop;
    pthread_t thread;
    server_shard *shard; /* [settings.shards] */
    store_thread *store;

    transport *scheduler;
    char scheduler_address[320];
    char reach[CONFIG_TEXT_BYTES]; /* where workers dial its shards */
    char host[CONFIG_TEXT_BYTES];  /* the machine's name, for sentences */
    wire_arena *arena;
    wire_out out;
    loop_timer hello, beat, lost;
    uint64_t nonce, started_ms, heard_ms, beats, beat_ms; /* beat_ms: when the next is due */
    pen_error will; /* what to say when the scheduler is gone; "" before it came */
    bool is_up;

    uint64_t incarnation, term, epoch, lease_ms;
    int32_t rank;
    char job[CONFIG_TEXT_BYTES];
    wire_member *worker;
    uint32_t n_workers, first_shard;
    server_plan *plan;
    bool is_ready;
    int64_t restored;

    int64_t snapshot[SERVER_SNAPSHOTS_MAX]; /* complete ones, ascending */
    uint32_t n_snapshots;

    server_question question; /* the best answer so far */
    uint32_t answers_due;

    pen_status status;
    pen_error why;
    bool has_ended;
};

/* server.c */
void server_end(server *s, const pen_error *error); /* NULL: in good order */

/* server_control.c */
pen_status server_control_open(server *s, pen_error *why);
void server_control_close(server *s);
void server_send(server *s, const wire_control *c);

#endif
