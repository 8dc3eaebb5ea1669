/* server_state.h - the inside of a server process, shared by server*.c and store_thread.c only. */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H

#include "server/process/server.h"
#include "server/shard/shard.h"

#include "common/base/machine.h"
#include "common/base/loop.h"
#include "common/net/transport/lifeline.h"
#include "common/net/transport/own_address.h"
#include "common/net/transport/reach.h"
#include "common/net/transport/transport.h"
#include "common/base/why.h"
#include "membership/membership.h"

#include <pthread.h>

enum { SERVER_SNAPSHOTS_MAX = 64 };

/* ---- tasks between threads: server_task.c ---------------------------------------------------- */
/* Runs fn in the thread of `to`: with a copy of size bytes of value, which it may use until it returns; size 0: with
 * value itself.  False: no memory, nothing was posted. */
bool server_post(loop *to, loop_fn fn, const void *value, size_t size);

/* What threads say to main, and with what; main frees what is OWNED, the others are copies. */
/* clang-format off */
typedef enum {
    SERVER_PREPARED,     /* server_plan, which stays: its shards are made, or why not */
    SERVER_MADE,         /* server_rooms, OWNED: shards that came later               */
    SERVER_REACHED,      /* NULL: a place has reached the copies of its shards        */
    SERVER_SEALED,       /* server_place_sealed, OWNED                                */
    SERVER_PART_WRITTEN, /* server_part                                               */
    SERVER_ANSWERED,     /* server_question                                           */
    SERVER_CUT_BEGUN,    /* int64_t: the first cut of this step's snapshot is there   */
    SERVER_UNREACHED,    /* server_unreached                                          */
    SERVER_SAYS,         /* wire_control without pointers, for the scheduler          */
    SERVER_FAILED        /* pen_error: this job has to end                            */
} server_event;
/* clang-format on */
bool server_tell_main(server *s, server_event event, const void *value, size_t size);

/* From any thread: this job has to end. */
void server_report(server *s, const pen_error *error);

/* From any thread: says this to the scheduler; it has no pointers. */
void server_tell(server *s, const wire_control *c);

/* In main's thread: says this to the scheduler; this server ends, error NULL: in good order. */
void server_send(server *s, const wire_control *c);
void server_end(server *s, const pen_error *error);

/* ---- the plan, written by the store thread, then read by all --------------------------------- */
typedef struct server_shard server_shard;
typedef struct server_link server_link;

/* A shard of the job that is here: memory of the store thread until its own thread has it. */
typedef struct {
    server_shard *place;
    uint32_t number;
    shard *shard;
    uint32_t n_copies;
    int32_t server[SHARD_COPIES_MAX]; /* where its other copies are */
    server_link *link[SHARD_COPIES_MAX];
    uint64_t sealed_epoch;
    wire_sealed_report report;
} server_hosted;
void server_hosted_destroy(server_hosted *h); /* NULL is fine */

/* Shards that are to be made. */
typedef struct server_rooms server_rooms;
typedef struct {
    server *server;
    wire_arena *arena;
    wire_control message; /* PLAN, in arena */
    plan *plan;
    uint32_t world_size, first_shard; /* world_size: ranks that may ever come */
    uint64_t incarnation, term;
    int32_t rank;
    server_rooms *rooms; /* of the first placement, until main has them */
    int64_t applied;
    uint8_t *states; /* of the workers, in the snapshot that was restored; a bundle */
    size_t states_bytes;
    pen_status status;
    pen_error why;
    size_t head_size;
    char head[]; /* PLAN as it came */
} server_plan;
void server_plan_destroy(server_plan *p); /* NULL is fine */

struct server_rooms {
    server *server;
    const server_plan *plan;
    uint32_t n;
    wire_replica *row;      /* [n] OWNED */
    server_hosted **hosted; /* [n] made of them, until they are handed on */
    pen_status status;
    pen_error why;
};
server_rooms *server_rooms_create(server *s, const server_plan *p,
                                  uint32_t room); /* NULL: no memory */
void server_rooms_destroy(server_rooms *r);       /* NULL is fine    */

/* ---- threads that have shards: server_shard.c, server_hosted.c, server_link.c ---------------- */
typedef struct server_unsent server_unsent;

struct server_shard { /* a place: one thread, one address, any number of shards */
    server *server;
    uint32_t index; /* within this server */
    loop *loop;
    transport *endpoint;
    char address[320]; /* as workers and other servers dial it */
    pthread_t thread;
    bool is_running;

    server_hosted **hosted; /* [n_hosted] */
    uint32_t n_hosted;
    size_t hosted_capacity;
    server_link *links;
    bool has_reached; /* all copies of the shards that it had at first; main has been told */
    wire_arena *arena;
    wire_out out;
    server_unsent *unsent;
    uint32_t n_unsent;
    loop_timer retry, nudge, sealing, look; /* look: at links that are missing */
    bool is_sealing;                        /* some shard waits for what its primary has sent */
    uint64_t seal_term, seal_epoch;
};

pen_status server_shard_open(server_shard *s, pen_error *why);
pen_status server_shard_start(server_shard *s, pen_error *why);
void server_shard_stop(server_shard *s);  /* waits for its thread */
void server_shard_drain(server_shard *s); /* its tasks, not its messages; after stop */
void server_shard_close(server_shard *s);
shard_outside server_shard_outside(server_hosted *h);

server_hosted *server_shard_find(const server_shard *s, uint32_t number); /* NULL: not here */
bool server_shard_adopt(server_shard *s, server_hosted *h);               /* false: no memory */
void server_shard_flush(server_shard *s);
void server_shard_forget(server_shard *s); /* all its shards; after stop */
void server_shard_try_seal(server_shard *s, bool is_late);

/* The connection of one thread to one thread of another server. */
server_link *server_link_to(server_shard *s, int32_t rank, uint64_t incarnation,
                            const char *address); /* NULL: it cannot be dialled */
bool server_link_send(server_link *l, const wire_data *d, buf *payload);
void server_links_mark(server_shard *s);  /* all as not needed */
void server_links_sweep(server_shard *s); /* those that were not asked for since */
void server_links_tell(server_shard *s);  /* SERVER_REACHED, once: none is missing */

/* ---- what main tells them; each is posted to a place's loop ------- */
typedef struct { /* one shard that is to be here */
    uint32_t number;
    shard_role role;
    uint64_t primary; /* incarnation */
    uint32_t n_replicas;
    shard_replica replica[SHARD_COPIES_MAX];
    char address[SHARD_COPIES_MAX][320];
} server_row;

typedef struct { /* an epoch */
    server_shard *to;
    shard_view view; /* what is equal for all shards; worker is OWNED */
    uint32_t n_rows, n_fresh;
    server_row *row;       /* OWNED; shards that are not among them go */
    server_hosted **fresh; /* OWNED, and so are they: yours from now on */
} server_news;
void server_shard_news(void *news); /* OWNED */
void server_news_destroy(server_news *n);

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

typedef struct { /* another server cannot be reached */
    int32_t rank;
    char address[320], words[REACH_NOTE_BYTES];
} server_unreached;

typedef struct {
    server_shard *shard;
    int64_t step;
} server_sign;
void server_shard_cut_idle(void *sign);

/* ---- the store thread: store_thread.c -------------------------------------------------------- */
typedef struct store_thread store_thread;
pen_status store_thread_start(server *s, store_thread **t, pen_error *why);
void store_thread_stop(store_thread *t); /* finishes what was asked; NULL is fine */

void store_thread_prepare(store_thread *t, server_plan *p); /* then SERVER_PREPARED */
void store_thread_make(store_thread *t, server_rooms *r);   /* then SERVER_MADE */
/* Whose cuts make a part of this server: the shards of which it has the primary. */
void store_thread_expect(store_thread *t, uint32_t *shard, uint32_t n); /* shard is OWNED */
/* Any thread; OWNED.  Refused, for the whole snapshot, while another is being written. */
void store_thread_cut(store_thread *t, uint32_t shard, shard_cut *cut);
/* A shard is about to copy what a snapshot may still hold: waits for room (snapshot_memory.h). */
void store_thread_copying(store_thread *t, size_t bytes);
/* The newest of `keep` is complete on all servers: whatever is older and not in keep goes. */
void store_thread_forget(store_thread *t, const int64_t *keep, uint32_t n, int32_t n_servers);
void store_thread_drop(store_thread *t, int64_t step); /* another server could not write its part */
/* As store_thread_forget(), where nothing has been written yet, or could not be: the disk is full. */
void store_thread_make_room(store_thread *t, const int64_t *keep, uint32_t n, int32_t n_servers);

/* Steps of complete snapshots in a directory, ascending; a directory that is not there has none.
 * CORRUPT: something newer than all of them is damaged. */
pen_status store_thread_find(const char *dir, int64_t *steps, uint32_t cap, uint32_t *n,
                             pen_error *why);

/* ---- main ------------------------------------------------------------------------------------ */
typedef struct { /* how writing a part went */
    server *server;
    uint32_t n_shards;
    uint32_t *shard; /* OWNED: those it covers */
    int64_t step;
    uint64_t bytes;
    pen_status status;
    bool is_late;    /* refused: the one before was still being written */
    bool lacks_room; /* the disk is full */
    pen_error why;
} server_part;

typedef struct { /* all shards of one place are sealed */
    server *server;
    uint64_t term, epoch;
    uint32_t n;
    wire_sealed_report report[];
} server_place_sealed;

/* server_inbox.c */
void server_take(server *s, server_event event, void *value);

/* It calls them. */
void server_prepared(void *plan);
void server_place_reached(void *server);
void server_made(void *rooms);
void server_sealed(void *place_sealed);
void server_part_written(void *part);
void server_answer(void *question);

typedef enum { SERVER_ABSENT, SERVER_MAKING, SERVER_HERE } server_presence;

struct server {
    server_settings settings;
    stat_set stats;
    loop *loop;
    void (*take)(server *s, server_event event, void *value); /* in main's thread */
    server_shard *shard;                                      /* [settings.shards] */
    store_thread *store;

    guard *guard;
    struct watch *watch; /* NULL: nothing is shown */
    admission admission;
    lifeline *scheduler;
    char scheduler_address[320];
    own_address own;              /* where others dial its shards */
    char host[CONFIG_TEXT_BYTES]; /* the machine's name, for sentences */
    char machine[MACHINE_BYTES];  /* what fails together */
    wire_arena *arena;
    wire_out out;
    membership member;
    loop_timer life;              /* when it has something to do */
    const transport_event *event; /* that is being received */
    const char *address[64];      /* scratch of HELLO and BEAT */
    wire_stat beat_stat[STAT_COUNT];
    uint64_t beat_ns; /* when the newest left, for the timeline */
    uint64_t nonce, term;
    int32_t rank;
    char job[CONFIG_TEXT_BYTES];
    wire_arena *record_arena;
    wire_control record; /* the newest EPOCH; its lists lie in record_arena */
    uint32_t n_workers, first_shard;
    int32_t n_servers;
    server_plan *plan;
    wire_replica fallback[64]; /* of a PLAN that places nothing: one shard for each thread */
    server_presence *presence; /* [n_shards] of the job */
    uint32_t n_shards;
    bool is_ready;      /* has made its shards */
    uint32_t n_reached; /* places that have reached the copies of theirs; READY when all have */
    int64_t restored;

    int64_t snapshot[SERVER_SNAPSHOTS_MAX]; /* complete ones, in the order they were written */
    uint32_t n_snapshots;

    server_question question; /* the best answer so far */
    uint32_t answers_due;

    pen_status status;
    pen_error why;
    bool has_ended;
    uint32_t n_refused; /* attempts to reach the scheduler that met something else */
};

/* server_settings.c: what is not to be in memory; its dir is BORROWED from *s. */
shard_offload server_settings_offload(const server_settings *s);

/* server_http.c: by the setting http; s->watch */
pen_status server_http_open(server *s, pen_error *why);

/* server_epoch.c */
void server_epoch_take(server *s, const void *head, size_t size); /* EPOCH, newer than the last */
void server_epoch_plan(server *s, const void *head, size_t size);
void server_epoch_seal(server *s, uint64_t term, uint64_t epoch);
void server_epoch_fini(server *s);

/* server_control.c */
pen_status server_control_open(server *s, pen_error *why);
void server_control_close(server *s);
void server_control_after(server *s); /* its membership may be due at another time */
void server_control_leave(server *s); /* says farewell, and waits for the answer */

#endif
