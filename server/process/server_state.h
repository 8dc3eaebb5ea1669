/* server_state.h - the inside of a server process, shared by server*.c and store_thread.c only. */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H

#include "server/process/server.h"
#include "server/shard/shard.h"

#include "common/base/loop.h"
#include "common/base/why.h"
#include "common/net/lifeline.h"
#include "common/net/own_address.h"
#include "common/net/reach.h"
#include "common/net/transport/transport.h"
#include "common/system/machine.h"
#include "membership/commands.h"
#include "membership/membership.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SERVER_SNAPSHOTS_MAX = 64, SERVER_ARENA_BYTES_MAX = 32 << 20 };

/* ---- tasks between threads: server_task.c ---------------------------------------------------- */
/* Runs fn in the thread of `to` with a copy of size bytes of value, valid until fn returns; size 0: with value
 * itself.  False: no memory, nothing was posted. */
bool server_post(loop *to, loop_fn fn, const void *value, size_t size);

/* Events of the threads for main, and their values: main frees OWNED ones, the others are copies. */
/* clang-format off */
typedef enum {
    SERVER_PREPARED,      /* server_plan, kept: its shards are made, or failed */
    SERVER_MADE,          /* server_new_shards, OWNED: later shards */
    SERVER_REACHED,       /* NULL: a thread reached the copies of its shards */
    SERVER_SEALED,        /* server_place_sealed, OWNED */
    SERVER_PART_WRITTEN,  /* server_part */
    SERVER_ANSWERED,      /* server_question */
    SERVER_CAPTURE_BEGUN, /* int64_t: first capture of this step's snapshot */
    SERVER_UNREACHED,     /* server_unreached */
    SERVER_SAYS,          /* wire_control without pointers, for the scheduler */
    SERVER_FAILED         /* pen_error: ends the job */
} server_event;
/* clang-format on */
bool server_notify_main(server *s, server_event event, const void *value, size_t size);

/* Any thread: ends this job.  The first one counts until main has taken it. */
void server_report(server *s, const pen_error *error);
void server_no_memory(server *s, const char *what); /* server_report() with that sentence */

/* Any thread: sends c to the scheduler; c has no pointers. */
void server_notify(server *s, const wire_control *c);

/* Main's thread: sends c to the scheduler. */
void server_send(server *s, const wire_control *c);
void server_end(server *s, const pen_error *error);

/* ---- the plan, written by the store thread, then read by all --------------------------------- */
typedef struct server_shard server_shard;
typedef struct server_link server_link;

/* A shard of this server; belongs to the store thread until its own thread takes it. */
typedef struct {
    server_shard *place;
    uint32_t number;
    shard *shard;
    uint32_t n_copies;
    int32_t server[SHARD_COPIES_MAX]; /* servers of its other copies */
    server_link *link[SHARD_COPIES_MAX];
    uint64_t sealed_epoch;
    wire_sealed_report report;
} server_hosted;
void server_hosted_destroy(server_hosted *h); /* NULL is fine */

/* Shards to make. */
typedef struct server_new_shards server_new_shards;
typedef struct {
    server *server;
    wire_arena *arena;
    wire_control message; /* PLAN, in arena */
    plan *plan;
    uint32_t world_size, first_shard; /* world_size: upper bound of ranks */
    uint64_t incarnation, term;
    int32_t rank;
    server_new_shards *new_shards; /* of the first placement, until main takes them */
    int64_t applied;
    uint8_t *states; /* the workers' states in the restored snapshot; a bundle */
    size_t states_bytes;
    pen_status status;
    pen_error why;
} server_plan;
void server_plan_destroy(server_plan *p); /* NULL is fine */

struct server_new_shards {
    server *server;
    const server_plan *plan;
    uint32_t n;
    wire_replica *row;      /* [n] OWNED */
    server_hosted **hosted; /* [n] the shards made, until they are handed on */
    pen_status status;
    pen_error why;
};
server_new_shards *server_new_shards_create(server *s, const server_plan *p,
                                            uint32_t room); /* NULL: no memory */
void server_new_shards_destroy(server_new_shards *r);       /* NULL is fine */

/* ---- threads with shards: server_shard.c, server_hosted.c, server_link.c --------------------- */
typedef struct server_unsent server_unsent;

struct server_shard { /* one thread, one address, any number of shards */
    server *server;
    uint32_t index; /* within this server */
    loop *loop;
    transport *endpoint;
    char address[320]; /* dialled by workers and other servers */
    pthread_t thread;
    bool is_running;

    server_hosted **hosted; /* [n_hosted] */
    uint32_t n_hosted;
    size_t hosted_capacity;
    server_link *links;
    bool has_reached; /* reached all copies of its first shards; main knows */
    wire_arena *arena;
    wire_out out;
    server_unsent *unsent;
    uint32_t n_unsent;
    loop_timer retry, resend_timer, sealing, look; /* look: for missing links */
    bool is_sealing;                               /* some shard waits for entries of its primary */
    uint64_t seal_term, seal_epoch;
};

pen_status server_shard_open(server_shard *s, pen_error *why);
pen_status server_shard_start(server_shard *s, pen_error *why);
void server_shard_stop(server_shard *s);  /* waits for its thread */
void server_shard_drain(server_shard *s); /* runs its tasks, drops its messages; after stop */
void server_shard_close(server_shard *s);
shard_outside server_shard_outside(server_hosted *h);

server_hosted *server_shard_find(const server_shard *s, uint32_t number); /* NULL: not here */
bool server_shard_adopt(server_shard *s, server_hosted *h);               /* false: no memory */
void server_shard_flush(server_shard *s);
void server_shard_forget(server_shard *s); /* all its shards; after stop */
void server_shard_try_seal(server_shard *s, bool is_late);

/* The connection of one thread to one thread of another server. */
server_link *server_link_to(server_shard *s, int32_t rank, uint64_t incarnation,
                            const char *address); /* NULL: cannot dial */
bool server_link_send(server_link *l, const wire_data *d, buf *payload);
void server_links_mark(server_shard *s);   /* all as unused */
void server_links_sweep(server_shard *s);  /* drops the links still marked */
void server_links_notify(server_shard *s); /* sends SERVER_REACHED once none is missing */

/* ---- from main to a thread; each is posted to its loop --------------------------------------- */
typedef struct { /* one shard of this server */
    uint32_t number;
    shard_role role;
    uint64_t primary; /* incarnation */
    uint32_t n_replicas;
    shard_replica replica[SHARD_COPIES_MAX];
    char address[SHARD_COPIES_MAX][320];
} server_row;

typedef struct { /* an epoch */
    server_shard *to;
    shard_view view; /* the part that is equal for all shards; worker is OWNED */
    uint32_t n_rows, n_fresh;
    server_row *row;       /* OWNED; other shards are dropped */
    server_hosted **fresh; /* OWNED, like the shards in it */
} server_epoch_update;
void server_shard_epoch_update(void *epoch_update); /* OWNED */
void server_epoch_update_destroy(server_epoch_update *n);

typedef struct {
    server_shard *to;
    uint64_t term, epoch;
} server_seal;
void server_shard_seal(void *seal); /* answers by SERVER_SEALED */

typedef struct {
    server *server;
    server_shard *shard;
    int32_t rank;
    uint32_t serial; /* of the question */
    bool is_known, lacks_values;
    uint64_t step;
    uint32_t chunk;
    char tensor[128];
} server_question;
void server_shard_question(void *question); /* answers by SERVER_ANSWERED */

typedef struct { /* an unreachable server */
    int32_t rank;
    char address[320], words[REACH_NOTE_BYTES];
} server_unreached;

typedef struct {
    server_shard *shard;
    int64_t step;
} server_sign;
void server_shard_capture_idle(void *sign);

/* ---- the store thread: store_thread.c -------------------------------------------------------- */
typedef struct store_thread store_thread;
pen_status store_thread_start(server *s, store_thread **t, pen_error *why);
void store_thread_stop(store_thread *t); /* finishes its tasks; NULL is fine */

void store_thread_prepare(store_thread *t, server_plan *p);    /* then SERVER_PREPARED */
void store_thread_make(store_thread *t, server_new_shards *r); /* then SERVER_MADE */
/* The shards whose captures form this server's part: its primaries. */
void store_thread_expect(store_thread *t, uint32_t *shard, uint32_t n); /* shard is OWNED */
/* Any thread; OWNED.  Refuses the whole snapshot while another is being written. */
void store_thread_capture(store_thread *t, uint32_t shard, shard_capture *capture);
/* Before a shard copies memory that a snapshot holds: waits for room (snapshot_memory.h). */
void store_thread_copying(store_thread *t, size_t bytes);
/* The newest of `keep` is complete on all servers: removes older ones that are not in keep. */
void store_thread_forget(store_thread *t, const int64_t *keep, uint32_t n, int32_t n_servers);
void store_thread_drop(store_thread *t, int64_t step); /* another server failed to write its part */
/* As store_thread_forget() while nothing is written yet, or when the disk is full. */
void store_thread_make_room(store_thread *t, const int64_t *keep, uint32_t n, int32_t n_servers);

/* Steps of complete snapshots in a directory, ascending; none if the directory does not exist. CORRUPT: something
 * newer than all of them is damaged. */
pen_status store_thread_find(const char *dir, int64_t *steps, uint32_t cap, uint32_t *n,
                             pen_error *why);

/* ---- main ------------------------------------------------------------------------------------ */
typedef struct { /* the result of writing a part */
    server *server;
    uint32_t n_shards;
    uint32_t *shard; /* OWNED: the shards it covers */
    int64_t step;
    uint64_t bytes;
    pen_status status;
    bool lacks_room; /* the disk is full */
    pen_error why;
} server_part;

typedef struct { /* all shards of one thread are sealed */
    server *server;
    uint64_t term, epoch;
    uint32_t n;
    wire_sealed_report report[];
} server_place_sealed;

/* server.c */
void server_take(server *s, server_event event, void *value);

/* The handler of these events: */
void server_prepared(void *plan);
void server_place_reached(void *server);
void server_made(void *new_shards);
void server_sealed(void *place_sealed);
void server_part_written(void *part);
void server_answer(void *question);

typedef enum { SERVER_ABSENT, SERVER_MAKING, SERVER_HERE } server_shard_presence;

struct server {
    server_settings settings;
    stat_set stats;
    loop *loop;
    void (*take)(server *s, server_event event, void *value); /* in main's thread */
    server_shard *shard;                                      /* [settings.shards] */
    store_thread *store;

    auth *auth;
    struct monitor *monitor; /* NULL: no HTTP */
    admission admission;
    lifeline *scheduler;
    char scheduler_address[320];
    own_address own;              /* address of its shards for others */
    char host[CONFIG_TEXT_BYTES]; /* the machine's name, for sentences */
    char machine[MACHINE_BYTES];  /* failure domain */
    wire_arena *arena;
    wire_out out;
    membership member;
    loop_timer life;         /* next deadline */
    const char *address[64]; /* scratch of HELLO and BEAT */
    wire_stat beat_stat[STAT_COUNT];
    uint64_t beat_ns; /* when the newest beat left, for the timeline */
    uint64_t nonce, term;
    int32_t rank;
    char job[CONFIG_TEXT_BYTES];
    wire_arena *view_arena;
    wire_epoch view; /* the newest; lists in view_arena */
    uint32_t n_workers, first_shard;
    int32_t n_servers;
    server_plan *plan;
    wire_replica fallback[64];             /* for a PLAN without placement: one shard per thread */
    server_shard_presence *shard_presence; /* [n_shards] of the job */
    uint32_t n_shards;
    bool is_ready;      /* has made its shards */
    uint32_t n_reached; /* threads that reached the copies of their shards; READY when all have */
    int64_t restored;

    int64_t snapshot[SERVER_SNAPSHOTS_MAX]; /* complete ones, in order of writing */
    uint32_t n_snapshots;

    server_question question; /* the best answer so far */
    uint32_t answers_due;

    handler_set handlers; /* of the program or of its plugin */
    int crash_fd;         /* an eventfd */
    loop_timer watching;  /* of handlers */
    bool is_stuck;        /* a handler hangs or has crashed; threads cannot be joined */
    commands *commands;   /* of workers, for handlers */
    struct server_gather *gathers;

    atomic_bool has_failure; /* of server_report(), that main has not taken */
    loop_task failure_task;
    pen_error failure;
    pen_status status;
    pen_error why;
    bool has_ended;
    uint32_t n_refused; /* failed attempts to reach the scheduler */
};

/* server_settings.c: what stays out of memory; dir is BORROWED from *s. */
shard_offload server_settings_offload(const server_settings *s);

/* server_plugin.c: loads the plugin, and watches over the handlers once the loop runs. */
pen_status server_plugin_open(server *s, pen_error *why);
void server_plugin_close(server *s);

/* server_command.c */
void server_command(server *s, const wire_control *command);
void server_commands_close(server *s);

/* server_epoch.c */
/* Messages in s->arena, which they keep: another becomes s->arena. */
void server_epoch_take(server *s, const wire_control *epoch);
void server_epoch_plan(server *s, const wire_control *plan);
void server_epoch_seal(server *s, uint64_t term, uint64_t epoch);
void server_epoch_fini(server *s);

/* server_control.c */
pen_status server_control_open(server *s, pen_error *why);
void server_control_close(server *s);
void server_control_after(server *s); /* reschedules s->life after a change of membership */
void server_control_leave(server *s); /* sends FAREWELL and waits for the answer */

#endif
