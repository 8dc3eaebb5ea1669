/* scheduler_scene.h - a scheduler core without network: a job that trains; all it sends is stored and decoded. */
#ifndef TESTS_SUPPORT_SCHEDULER_SCENE_H
#define TESTS_SUPPORT_SCHEDULER_SCENE_H

#include "scheduler/core/core.h"

enum { SCENE_PEERS = 256, SCENE_LAUNCHER = 200, SCENE_OBSERVER = 201 };
#define SCENE_WORKER(rank) (1u + (uint32_t)(rank))
#define SCENE_SERVER(rank) (101u + (uint32_t)(rank))

typedef struct scene_letter scene_letter;

typedef struct {
    scheduler_core *core;
    scheduler_settings settings;
    scheduler_actions actions;
    uint64_t now, term;
    scene_letter *first, **end; /* all messages sent since scene_forget() */
    uint64_t incarnation[SCENE_PEERS], nonce[SCENE_PEERS];
    int32_t workers, servers;
    bool keep_fails, all_prepared, has_ended;
    void *kept;
    size_t kept_size;
    uint64_t told_epoch, told_term; /* of the newest SEAL and EPOCH */
    wire_replica copy[1024];        /* of the newest EPOCH, or PLAN */
    uint32_t n_copies;
    uint64_t ready_as[SCENE_PEERS]; /* incarnations of workers that have said READY */
    bool has_plan[SCENE_PEERS];     /* the process that is there now */
    bool reaches_nobody;            /* workers do not send READY by themselves */
    char logged[2048];              /* NOTICE and INFO, newest last */
} scene;

/* `workers` and `servers` with two threads each; strings are settings, the last is NULL.  Trains. */
scene *scene_train(int32_t workers, int32_t servers, ...);
/* The same, without any member yet. */
scene *scene_wait(int32_t workers, int32_t servers, ...);
void scene_drop(scene *r);

/* Every message of a core must be encodable: fails the test otherwise. */
void scene_assert_travels(const wire_control *message);

/* ---- what was sent; BORROWED until scene_forget() ---------------------------------------------- */
void scene_forget(scene *r);
const wire_control *scene_last(const scene *r, uint32_t peer, wire_control_kind kind); /* or NULL */
const wire_control *scene_must(const scene *r, uint32_t peer, wire_control_kind kind);
uint32_t scene_count(const scene *r, wire_control_kind kind);
uint32_t scene_position(const scene *r, uint32_t peer, wire_control_kind kind); /* of the newest */

/* Of an EPOCH or PLAN.  Role 0: none, or any. */
int32_t scene_role(const wire_control *c, uint32_t shard, int32_t server);
int32_t scene_primary(const wire_control *c, uint32_t shard);
int32_t scene_backup(const wire_control *c, uint32_t shard);
uint32_t scene_count_role(const wire_control *c, int32_t server, int32_t role);

/* ---- what it receives ------------------------------------------------------------------------ */
wire_control scene_hello(int32_t role, int32_t rank, int32_t world, int32_t servers,
                         uint64_t nonce);
void scene_give(scene *r, uint32_t peer, wire_control *c, uint64_t from);
void scene_say(scene *r, uint32_t peer, wire_control *c);
void scene_pass(scene *r, uint64_t ms); /* all live members beat now and then */
void scene_beat_all(scene *r, int64_t step);
void scene_worker_comes(scene *r, int32_t rank, uint64_t nonce);
void scene_server_comes(scene *r, int32_t rank, uint64_t nonce);
void scene_guest_comes(scene *r, int32_t role, uint32_t peer);
void scene_comes_back(scene *r, uint32_t peer); /* the same process, to a restarted scheduler */
void scene_registers(scene *r, int32_t rank, bool other_model);
void scene_ready(scene *r, int32_t server);
void scene_leaves(scene *r, uint32_t peer);
void scene_exits(scene *r, int32_t role, int32_t rank, int code, const char *note);
void scene_server_dies(scene *r,
                       int32_t rank); /* killed: its connection breaks, its launcher reports it */
void scene_worker_dies(scene *r, int32_t rank);
/* SEALED: every copy on that server has applied the same; `step` steps are committed. */
void scene_seals(scene *r, int32_t server, int64_t step);
void scene_seals_all(scene *r, int64_t step);
/* The primaries of all learners on that server report that they have everything. */
void scene_caught_up(scene *r, const wire_control *epoch, int32_t server);

/* ---- its death ------------------------------------------------------------------------------- */
void scene_restart(scene *r); /* with what was persisted; forgets what was sent */
pen_status scene_load(scene *r, const void *state, size_t size); /* into a core of its own */

#endif
