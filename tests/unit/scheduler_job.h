/* scheduler_job.h - a job without network: a scheduler core with a manual clock, its messages, and
 * its members' messages. */
#ifndef TESTS_UNIT_SCHEDULER_JOB_H
#define TESTS_UNIT_SCHEDULER_JOB_H

#include "common/base/log.h"
#include "proto/plan.h"
#include "scheduler/core/core.h"
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a job: its messages and its members ----------------------------------------------------- */
enum {
    WORKER_PEER   = 1000,
    SERVER_PEER   = 100000,
    LAUNCHER_PEER = 200000,
    LETTERS_MAX   = 65536,
    DATA_MAX      = 64
};

typedef struct {
    uint32_t peer;
    wire_control_kind kind;
    pen_status status;
    uint64_t incarnation, generation;
    int32_t rank;
    int64_t step, applied, gone; /* gone -1: no snapshot is deleted */
    uint32_t n, n_settings;
    double refused;
    char text[640];
    uint8_t data[DATA_MAX];
    size_t size;
} letter;

typedef struct {
    scheduler_core *core;
    scheduler_settings settings;
    uint64_t now;
    letter *sent;
    uint32_t n_sent;
    bool has_ended;
    pen_status status;
    char ended_with[640], logged[1024];
    uint64_t worker[2048], server[16], launcher; /* incarnations */
    uint64_t ready_as[2048];                     /* incarnations of workers that have said READY */
    int32_t planned[4096]; /* workers that were sent PLAN, and have not answered */
    uint32_t n_planned;
    bool reaches_nobody; /* workers do not send READY by themselves */
} job;

static inline void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

static inline void read_letter(letter *l, const wire_control *m)
{
    switch (m->kind) {
    case WIRE_WELCOME:
        l->incarnation = m->u.welcome.incarnation;
        l->rank        = m->u.welcome.rank;
        break;
    case WIRE_EPOCH: l->n = m->u.epoch.n_workers; break;
    case WIRE_PLAN:
        l->n          = m->u.plan.n_partitions;
        l->step       = m->u.plan.restore;
        l->n_settings = m->u.plan.model.n_tensors;
        break;
    case WIRE_COMMITTED:
        l->step    = m->u.committed.step;
        l->applied = m->u.committed.applied;
        break;
    case WIRE_BEAT_ACK: l->step = m->u.beat_ack.job_step; break;
    case WIRE_NOTICE: copy(l->text, sizeof l->text, m->u.notice.text); break;
    case WIRE_COMMAND:
        l->generation  = m->u.command.id;
        l->rank        = m->u.command.rank;
        l->incarnation = m->u.command.asker;
        l->step        = m->u.command.head;
        l->size        = m->u.command.body_size;
        if (l->size) memcpy(l->data, m->u.command.body, l->size);
        break;
    case WIRE_REPLY:
        l->generation  = m->u.reply.id;
        l->rank        = m->u.reply.rank;
        l->incarnation = m->u.reply.asker;
        l->status      = m->u.reply.status;
        l->size        = m->u.reply.data_size;
        if (l->size) memcpy(l->data, m->u.reply.data, l->size);
        copy(l->text, sizeof l->text, m->u.reply.text);
        break;
    case WIRE_VERDICT:
    case WIRE_WILL:
        l->status = m->u.verdict.status;
        l->rank   = m->u.verdict.rank;
        l->step   = m->u.verdict.step;
        copy(l->text, sizeof l->text, m->u.verdict.text);
        break;
    case WIRE_SNAPSHOT_DONE:
        l->step   = m->u.snapshot_done.step;
        l->status = m->u.snapshot_done.status;
        l->gone   = m->u.snapshot_done.makes_room ? m->u.snapshot_done.gone : -1;
        copy(l->text, sizeof l->text, m->u.snapshot_done.text);
        break;
    case WIRE_STATUS:
        l->n       = m->u.status.n_members;
        l->step    = m->u.status.step;
        l->refused = (double)m->u.status.refused;
        copy(l->text, sizeof l->text,
             m->u.status.n_waiting ? m->u.status.waiting[0] : m->u.status.phase);
        break;
    default: break;
    }
}

static inline void on_send(void *user, const uint32_t *peers, uint32_t n,
                           const wire_control *message)
{
    job *j = user;
    scene_assert_travels(message);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(j->n_sent < LETTERS_MAX);
        letter *l = &j->sent[j->n_sent++];
        *l        = (letter){.peer = peers[i], .kind = message->kind};
        read_letter(l, message);
        const bool is_worker = peers[i] >= WORKER_PEER && peers[i] < SERVER_PEER;
        if (message->kind != WIRE_PLAN || !is_worker) continue;
        assert_true(j->n_planned < 4096);
        j->planned[j->n_planned++] = (int32_t)(peers[i] - WORKER_PEER);
    }
}

static inline void on_log(void *user, int level, const char *line)
{
    if (level == LOG_DEBUG) return;
    copy(((job *)user)->logged, sizeof((job *)user)->logged, line);
}

static inline void on_ended(void *user, pen_status status, const pen_error *why)
{
    job *j = user;
    assert_false(j->has_ended);
    j->has_ended = true;
    j->status    = status;
    copy(j->ended_with, sizeof j->ended_with, why ? why->text : "");
}

static inline job *make_job(const char *const *strings)
{
    pen_error why;
    job *j  = calloc(1, sizeof *j);
    j->sent = calloc(LETTERS_MAX, sizeof *j->sent);
    j->now  = 5000;
    config_defaults(scheduler_settings_rows, &j->settings);
    assert_int_equal(config_from_strings(scheduler_settings_rows, &j->settings, strings, &why),
                     PEN_OK);
    const scheduler_actions actions = {on_send, on_log, on_ended, j, NULL};
    assert_int_equal(scheduler_core_create(&j->settings, 7, "a", &actions, j->now, &j->core, &why),
                     PEN_OK);
    return j;
}

static inline void drop_job(job *j)
{
    scheduler_core_destroy(j->core);
    free(j->sent);
    free(j);
}

static inline void forget(job *j)
{
    j->n_sent = 0;
}

static inline const letter *last(const job *j, uint32_t peer, wire_control_kind kind)
{
    for (uint32_t i = j->n_sent; i-- > 0;)
        if (j->sent[i].peer == peer && j->sent[i].kind == kind) return &j->sent[i];
    return NULL;
}

static inline uint32_t count(const job *j, wire_control_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_sent; i++) n += j->sent[i].kind == kind;
    return n;
}

static inline const letter *must(const job *j, uint32_t peer, wire_control_kind kind)
{
    const letter *l = last(j, peer, kind);
    if (!l) fail_msg("peer %u got no %s", peer, wire_kind_name((int)kind));
    return l;
}

static inline void assert_verdict(const job *j, uint32_t peer, pen_status status, const char *text)
{
    const letter *l = must(j, peer, WIRE_VERDICT);
    assert_string_equal(l->text, text);
    assert_int_equal(l->status, status);
}

/* Lets time pass as a shell would: a tick whenever one is due. */
static inline void pass(job *j, uint64_t ms)
{
    const uint64_t end = j->now + ms;
    for (;;) {
        const uint64_t next = scheduler_core_next_ms(j->core);
        if (next > end) break;
        if (next > j->now) j->now = next;
        scheduler_core_tick(j->core, j->now);
        if (j->has_ended) break;
    }
    j->now = end;
}

static inline void give(job *j, uint32_t peer, wire_control *message, uint64_t from)
{
    message->from = from;
    scheduler_core_receive(j->core, peer, message, j->now);
    while (j->n_planned > 0) { /* as a worker does whose connections are all up at once */
        const int32_t rank   = j->planned[--j->n_planned];
        const uint64_t who   = j->worker[rank];
        wire_control reached = {.kind = WIRE_READY, .from = who, .u.ready = {.restored = -1}};
        if (j->reaches_nobody || j->ready_as[rank] == who) continue;
        j->ready_as[rank] = who;
        scheduler_core_receive(j->core, WORKER_PEER + (uint32_t)rank, &reached, j->now);
    }
}

/* ---- messages of members --------------------------------------------------------------------- */
static const char *const worker_hosts[] = {"devbox", "devbox", "b", "c"};
static const char *const addresses[]    = {"tcp://devbox:1", "tcp://devbox:2"};

static inline wire_control hello_of(int32_t role, int32_t rank, int32_t world, int32_t servers,
                                    uint64_t nonce)
{
    wire_control c       = {.kind = WIRE_HELLO};
    c.u.hello.role       = role;
    c.u.hello.rank       = rank;
    c.u.hello.world_size = world;
    c.u.hello.servers    = servers;
    c.u.hello.local_rank = c.u.hello.node = -1;
    c.u.hello.nonce                       = nonce;
    c.u.hello.pid                         = 4000 + rank;
    c.u.hello.host  = role == PEN_WORKER && rank >= 0 && rank < 4 ? worker_hosts[rank] : "devbox";
    c.u.hello.job   = "mine";
    c.u.hello.store = "";
    c.u.hello.n_addresses = role == PEN_SERVER ? 2 : 0;
    c.u.hello.address     = addresses;
    return c;
}

static inline uint64_t hello(job *j, uint32_t peer, wire_control *c)
{
    forget(j);
    give(j, peer, c, 0);
    const letter *l = last(j, peer, WIRE_WELCOME);
    return l ? l->incarnation : 0;
}

static inline uint64_t worker_comes(job *j, int32_t rank, int32_t world, int32_t servers)
{
    wire_control c  = hello_of(PEN_WORKER, rank, world, servers, 10 + (uint64_t)rank);
    j->worker[rank] = hello(j, WORKER_PEER + (uint32_t)rank, &c);
    return j->worker[rank];
}

static inline uint64_t server_comes(job *j, int32_t rank)
{
    wire_control c  = hello_of(PEN_SERVER, -1, 0, 0, 50000 + (uint64_t)rank);
    j->server[rank] = hello(j, SERVER_PEER + (uint32_t)rank, &c);
    return j->server[rank];
}

static inline void launcher_comes(job *j)
{
    wire_control c = hello_of(WIRE_LAUNCHER, -1, 0, 0, 90000);
    j->launcher    = hello(j, LAUNCHER_PEER, &c);
    assert_true(j->launcher != 0);
}

static inline void all_come(job *j, int32_t workers, int32_t servers)
{
    for (int32_t s = 0; s < servers; s++) assert_true(server_comes(j, s) != 0);
    for (int32_t w = 0; w < workers; w++) assert_true(worker_comes(j, w, workers, servers) != 0);
}

static inline void say_worker(job *j, int32_t rank, wire_control *c)
{
    give(j, WORKER_PEER + (uint32_t)rank, c, j->worker[rank]);
}

static inline void say_server(job *j, int32_t rank, wire_control *c)
{
    give(j, SERVER_PEER + (uint32_t)rank, c, j->server[rank]);
}

static const wire_tensor tensors[] = {
    {.name       = "fc1.weight",
     .dtype      = PEN_F32,
     .grad_dtype = PEN_F32,
     .ndim       = 2,
     .shape      = {128, 784},
     .init       = ""},
    {.name       = "fc1.bias",
     .dtype      = PEN_F32,
     .grad_dtype = PEN_F32,
     .ndim       = 1,
     .shape      = {128},
     .init       = ""},
    {.name       = "fc2.weight",
     .dtype      = PEN_F32,
     .grad_dtype = PEN_F32,
     .ndim       = 2,
     .shape      = {10, 128},
     .init       = ""},
};

static const wire_group groups[] = {{"all", "sgd lr=0.1", "bsp", "raw", ""}};

static inline void registers(job *j, int32_t rank, const wire_pair *settings, uint32_t n_settings)
{
    wire_control c = {.kind = WIRE_REGISTER};
    c.u.register_  = (wire_model){3, 1, n_settings, tensors, groups, settings};
    say_worker(j, rank, &c);
}

static inline void ready(job *j, int32_t server, int64_t restored)
{
    wire_control c = {
        .kind    = WIRE_READY,
        .u.ready = {.restored = restored, .applied = restored > 0 ? restored - 1 : 0}};
    say_server(j, server, &c);
}

static inline void beat(job *j, int32_t rank, int64_t step, const char *call, uint64_t call_ms)
{
    wire_control c = {.kind   = WIRE_BEAT,
                      .u.beat = {.seq = 1, .step = step, .call = call, .call_ms = call_ms}};
    say_worker(j, rank, &c);
}

static inline void beat_server(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_BEAT, .u.beat = {.seq = 1, .step = -1, .call = ""}};
    say_server(j, rank, &c);
}

static inline job *training(int32_t workers, int32_t servers)
{
    static const char *const none[] = {NULL};
    job *j                          = make_job(none);
    all_come(j, workers, servers);
    for (int32_t w = 0; w < workers; w++) registers(j, w, NULL, 0);
    for (int32_t s = 0; s < servers; s++) ready(j, s, -1);
    must(j, WORKER_PEER, WIRE_COMMITTED);
    forget(j);
    return j;
}

static inline void owes(job *j, int32_t server, int32_t rank, int64_t step, const char *tensor)
{
    wire_control c = {.kind = WIRE_MISSING, .u.missing = {rank, step, tensor, tensor != NULL}};
    say_server(j, server, &c);
}

static inline void exits(job *j, int32_t role, int32_t rank, int32_t code, int32_t signal)
{
    wire_control c = {.kind = WIRE_EXITED, .u.exited = {role, rank, 1, code, signal, ""}};
    give(j, LAUNCHER_PEER, &c, j->launcher);
}

static inline void leaves(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_BYE};
    say_worker(j, rank, &c);
}

static inline void breaks(job *j, uint32_t peer)
{
    scheduler_core_peer_down(j->core, peer, j->now);
}

static const char *const nothing[] = {NULL};

#endif
