/* scheduler_alone.h - a job without servers: a scheduler core, its messages, and its members' messages. */
#ifndef TESTS_UNIT_SCHEDULER_ALONE_H
#define TESTS_UNIT_SCHEDULER_ALONE_H

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

enum { WORKERS = 4, LAUNCHER_PEER = 200, LETTERS_MAX = 8192 };

typedef struct {
    uint32_t peer, n;
    wire_control_kind kind;
    pen_status status;
    uint64_t incarnation, group, new_group, id;
    int32_t rank, ranks[8];
    int64_t value;
    char text[640], data[64];
    size_t size;
} letter;

typedef struct {
    scheduler_core *core;
    uint64_t now, worker[WORKERS], launcher; /* incarnations */
    letter *sent;
    uint32_t n_sent;
    bool has_ended;
    pen_status status;
    uint64_t ready_as[WORKERS]; /* incarnations of workers that have said READY */
} job;

/* ---- what was sent --------------------------------------------------------------------------- */
static inline void read_verdict(letter *l, const pen_error *why)
{
    l->status = why->status;
    l->rank   = why->rank;
    snprintf(l->text, sizeof l->text, "%s", why->text);
}

static inline void read_bytes(letter *l, pen_status status, const char *text, const void *data,
                              size_t n)
{
    l->status = status;
    l->size   = n;
    snprintf(l->text, sizeof l->text, "%s", text ? text : "");
    if (n) memcpy(l->data, data, n < sizeof l->data ? n : sizeof l->data);
}

static inline void read_letter(letter *l, const wire_control *m)
{
    switch (m->kind) {
    case WIRE_WELCOME: l->incarnation = m->u.welcome.incarnation; break;
    case WIRE_EPOCH:
        l->n = m->u.epoch.n_workers;
        snprintf(l->text, sizeof l->text, "%s", m->u.epoch.worker[1].address[0]);
        break;
    case WIRE_PLAN: l->n = m->u.plan.n_partitions; break;
    case WIRE_STATUS:
        l->n = m->u.status.n_waiting;
        if (l->n) snprintf(l->text, sizeof l->text, "%s", m->u.status.waiting[0]);
        break;
    case WIRE_NOTICE: snprintf(l->text, sizeof l->text, "%s", m->u.notice.text); break;
    case WIRE_VERDICT: read_verdict(l, &m->u.verdict); break;
    case WIRE_LOST:
        read_verdict(l, &m->u.lost.why);
        l->rank        = m->u.lost.rank;
        l->incarnation = m->u.lost.incarnation;
        break;
    case WIRE_FAULTED:
        read_verdict(l, &m->u.fault.why);
        l->group = m->u.fault.group;
        break;
    case WIRE_SHRUNK:
        l->group     = m->u.shrunk.group;
        l->new_group = m->u.shrunk.new_group;
        l->n         = m->u.shrunk.n_ranks;
        l->status    = m->u.shrunk.status;
        for (uint32_t i = 0; i < l->n; i++) l->ranks[i] = m->u.shrunk.rank[i];
        break;
    case WIRE_STORED:
        read_bytes(l, m->u.stored.status, m->u.stored.text, m->u.stored.data,
                   m->u.stored.data_size);
        l->id    = m->u.stored.id;
        l->value = m->u.stored.value;
        break;
    case WIRE_RECORD:
        read_bytes(l, m->u.record.status, m->u.record.text, m->u.record.data,
                   m->u.record.data_size);
        l->rank = m->u.record.rank;
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
    }
}

static inline void on_log(void *user, int level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static inline void on_ended(void *user, pen_status status, const pen_error *why)
{
    (void)why;
    job *j       = user;
    j->has_ended = true;
    j->status    = status;
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

static inline const letter *must(const job *j, uint32_t peer, wire_control_kind kind)
{
    const letter *l = last(j, peer, kind);
    if (!l) fail_msg("peer %u got no %s", peer, wire_kind_name((int)kind));
    return l;
}

static inline uint32_t count(const job *j, wire_control_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_sent; i++) n += j->sent[i].kind == kind;
    return n;
}

/* ---- a job ----------------------------------------------------------------------------------- */
static inline job *make_job(const char *const *strings)
{
    pen_error why;
    scheduler_settings settings;
    job *j  = calloc(1, sizeof *j);
    j->sent = calloc(LETTERS_MAX, sizeof *j->sent);
    j->now  = 5000;
    config_defaults(scheduler_settings_rows, &settings);
    assert_int_equal(config_from_strings(scheduler_settings_rows, &settings, strings, &why),
                     PEN_OK);
    const scheduler_actions actions = {on_send, on_log, on_ended, j, NULL};
    assert_int_equal(scheduler_core_create(&settings, 7, "a", &actions, j->now, &j->core, &why),
                     PEN_OK);
    return j;
}

static inline void drop_job(job *j)
{
    scheduler_core_destroy(j->core);
    free(j->sent);
    free(j);
}

static inline void give(job *j, uint32_t peer, uint64_t from, wire_control message)
{
    message.from = from;
    scheduler_core_receive(j->core, peer, &message, j->now);
    for (uint32_t w = 0; w < WORKERS; w++) { /* workers that have the plan have reached all */
        wire_control reached = {
            .kind = WIRE_READY, .from = j->worker[w], .u.ready = {.restored = -1}};
        if (last(j, w, WIRE_PLAN) == NULL || j->ready_as[w] == j->worker[w]) continue;
        j->ready_as[w] = j->worker[w];
        scheduler_core_receive(j->core, w, &reached, j->now);
    }
}

static inline void say(job *j, int32_t rank, wire_control message)
{
    give(j, (uint32_t)rank, j->worker[rank], message);
}

static inline wire_control hello_of(int32_t role, int32_t rank, int32_t servers)
{
    static const char *const address[] = {"tcp://devbox:1", "tcp://devbox:2", "tcp://devbox:3",
                                          "tcp://devbox:4"};
    wire_control c                     = {.kind = WIRE_HELLO};
    c.u.hello.role                     = role;
    c.u.hello.rank                     = rank;
    c.u.hello.world_size               = WORKERS;
    c.u.hello.servers                  = servers;
    c.u.hello.local_rank = c.u.hello.node = -1;
    c.u.hello.nonce                       = 10 + (uint64_t)rank;
    c.u.hello.host                        = "devbox";
    c.u.hello.job = c.u.hello.store = "";
    c.u.hello.n_addresses           = role == PEN_WORKER ? 1 : 0;
    c.u.hello.address               = role == PEN_WORKER ? &address[rank] : NULL;
    return c;
}

static inline void come(job *j, int32_t rank)
{
    give(j, (uint32_t)rank, 0, hello_of(PEN_WORKER, rank, 0));
    j->worker[rank] = must(j, (uint32_t)rank, WIRE_WELCOME)->incarnation;
}

static inline void launcher_comes(job *j)
{
    give(j, LAUNCHER_PEER, 0, hello_of(WIRE_LAUNCHER, -1, 0));
    j->launcher = must(j, LAUNCHER_PEER, WIRE_WELCOME)->incarnation;
}

static inline void registers(job *j, int32_t rank)
{
    static const wire_tensor tensor = {
        .name = "w", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {8}, .init = ""};
    static const wire_group group = {"all", "sgd lr=0.1", "bsp", "raw", ""};
    say(j, rank, (wire_control){.kind = WIRE_REGISTER, .u.register_ = {1, 1, 0, &tensor, &group}});
}

static inline job *joined(const char *rule)
{
    const char *const strings[] = {rule, NULL};
    job *j                      = make_job(strings);
    launcher_comes(j);
    for (int32_t w = 0; w < WORKERS; w++) come(j, w);
    return j;
}

static inline job *training(const char *rule)
{
    job *j = joined(rule);
    for (int32_t w = 0; w < WORKERS; w++) registers(j, w);
    must(j, 0, WIRE_COMMITTED);
    forget(j);
    return j;
}

static inline void beat(job *j, int32_t rank, const char *call, uint64_t call_ms)
{
    say(j, rank,
        (wire_control){.kind   = WIRE_BEAT,
                       .u.beat = {.seq = 1, .step = 418, .call = call, .call_ms = call_ms}});
}

static inline void dies(job *j, int32_t rank)
{
    wire_control c    = {.kind = WIRE_EXITED};
    c.u.exited.role   = PEN_WORKER;
    c.u.exited.rank   = rank;
    c.u.exited.signal = 9;
    c.u.exited.note   = "";
    c.u.exited.call   = "";
    give(j, LAUNCHER_PEER, j->launcher, c);
}

static inline void leaves(job *j, int32_t rank)
{
    say(j, rank, (wire_control){.kind = WIRE_BYE});
}

/* All but `silent` beat each second. */
static inline void live(job *j, int32_t silent, uint64_t ms)
{
    for (uint64_t t = 0; t < ms; t += 1000) {
        (void)scheduler_core_next_ms(j->core);
        j->now += 1000;
        for (int32_t w = 0; w < WORKERS; w++)
            if (w != silent) beat(j, w, "", 0);
        scheduler_core_tick(j->core, j->now);
    }
}

#endif
