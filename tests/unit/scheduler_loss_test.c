/* scheduler_loss_test.c - jobs without servers: who is lost, what failed, who is left, and the store;
 * with a hand-held clock and no network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/why.h"
#include "scheduler/core/core.h"
#include "tests/support/scheduler_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static void read_verdict(letter *l, const pen_error *why)
{
    l->status = why->status;
    l->rank   = why->rank;
    snprintf(l->text, sizeof l->text, "%s", why->text);
}

static void read_bytes(letter *l, pen_status status, const char *text, const void *data, size_t n)
{
    l->status = status;
    l->size   = n;
    snprintf(l->text, sizeof l->text, "%s", text ? text : "");
    if (n) memcpy(l->data, data, n < sizeof l->data ? n : sizeof l->data);
}

static void read_letter(letter *l, const wire_control *m)
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

static void on_send(void *user, const uint32_t *peers, uint32_t n, const wire_control *message)
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

static void on_log(void *user, int level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void on_ended(void *user, pen_status status, const pen_error *why)
{
    (void)why;
    job *j       = user;
    j->has_ended = true;
    j->status    = status;
}

static void forget(job *j)
{
    j->n_sent = 0;
}

static const letter *last(const job *j, uint32_t peer, wire_control_kind kind)
{
    for (uint32_t i = j->n_sent; i-- > 0;)
        if (j->sent[i].peer == peer && j->sent[i].kind == kind) return &j->sent[i];
    return NULL;
}

static const letter *must(const job *j, uint32_t peer, wire_control_kind kind)
{
    const letter *l = last(j, peer, kind);
    if (!l) fail_msg("peer %u got no %s", peer, wire_kind_name((int)kind));
    return l;
}

static uint32_t count(const job *j, wire_control_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_sent; i++) n += j->sent[i].kind == kind;
    return n;
}

/* ---- a job ----------------------------------------------------------------------------------- */
static job *make_job(const char *const *strings)
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

static void drop_job(job *j)
{
    scheduler_core_destroy(j->core);
    free(j->sent);
    free(j);
}

static void give(job *j, uint32_t peer, uint64_t from, wire_control message)
{
    message.from = from;
    scheduler_core_receive(j->core, peer, &message, j->now);
    for (uint32_t w = 0; w < WORKERS; w++) { /* who has the plan has reached all, at once */
        wire_control reached = {
            .kind = WIRE_READY, .from = j->worker[w], .u.ready = {.restored = -1}};
        if (last(j, w, WIRE_PLAN) == NULL || j->ready_as[w] == j->worker[w]) continue;
        j->ready_as[w] = j->worker[w];
        scheduler_core_receive(j->core, w, &reached, j->now);
    }
}

static void say(job *j, int32_t rank, wire_control message)
{
    give(j, (uint32_t)rank, j->worker[rank], message);
}

static wire_control hello_of(int32_t role, int32_t rank, int32_t servers)
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

static void come(job *j, int32_t rank)
{
    give(j, (uint32_t)rank, 0, hello_of(PEN_WORKER, rank, 0));
    j->worker[rank] = must(j, (uint32_t)rank, WIRE_WELCOME)->incarnation;
}

static void launcher_comes(job *j)
{
    give(j, LAUNCHER_PEER, 0, hello_of(WIRE_LAUNCHER, -1, 0));
    j->launcher = must(j, LAUNCHER_PEER, WIRE_WELCOME)->incarnation;
}

static void registers(job *j, int32_t rank)
{
    static const wire_tensor tensor = {
        .name = "w", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {8}, .init = ""};
    static const wire_group group = {"all", "sgd lr=0.1", "bsp", "raw", ""};
    say(j, rank, (wire_control){.kind = WIRE_REGISTER, .u.register_ = {1, 1, 0, &tensor, &group}});
}

static job *joined(const char *rule)
{
    const char *const strings[] = {rule, NULL};
    job *j                      = make_job(strings);
    launcher_comes(j);
    for (int32_t w = 0; w < WORKERS; w++) come(j, w);
    return j;
}

static job *training(const char *rule)
{
    job *j = joined(rule);
    for (int32_t w = 0; w < WORKERS; w++) registers(j, w);
    must(j, 0, WIRE_COMMITTED);
    forget(j);
    return j;
}

static void beat(job *j, int32_t rank, const char *call, uint64_t call_ms)
{
    say(j, rank,
        (wire_control){.kind   = WIRE_BEAT,
                       .u.beat = {.seq = 1, .step = 418, .call = call, .call_ms = call_ms}});
}

static void dies(job *j, int32_t rank)
{
    wire_control c    = {.kind = WIRE_EXITED};
    c.u.exited.role   = PEN_WORKER;
    c.u.exited.rank   = rank;
    c.u.exited.signal = 9;
    c.u.exited.note   = "";
    give(j, LAUNCHER_PEER, j->launcher, c);
}

static void leaves(job *j, int32_t rank)
{
    say(j, rank, (wire_control){.kind = WIRE_BYE});
}

/* Everybody but `silent` beats each second. */
static void live(job *j, int32_t silent, uint64_t ms)
{
    for (uint64_t t = 0; t < ms; t += 1000) {
        (void)scheduler_core_next_ms(j->core);
        j->now += 1000;
        for (int32_t w = 0; w < WORKERS; w++)
            if (w != silent) beat(j, w, "", 0);
        scheduler_core_tick(j->core, j->now);
    }
}

/* ---- jobs without servers -------------------------------------------------------------------- */
static void a_job_without_servers_begins_when_all_workers_mean_the_same_model(void **state)
{
    (void)state;
    job *j = joined("on_worker_loss=fail");
    assert_int_equal(must(j, 3, WIRE_EPOCH)->n, WORKERS);
    assert_string_equal(must(j, 3, WIRE_EPOCH)->text, "tcp://devbox:2");
    for (int32_t w = 0; w < WORKERS - 1; w++) registers(j, w);
    assert_null(last(j, 0, WIRE_COMMITTED));
    registers(j, WORKERS - 1);
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_int_equal(must(j, w, WIRE_PLAN)->n, 0);
        must(j, w, WIRE_COMMITTED);
    }
    for (int32_t w = 0; w < WORKERS; w++) leaves(j, w);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void who_wants_servers_where_there_are_none_is_turned_away(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){NULL});
    come(j, 0);
    give(j, 1, 0, hello_of(PEN_WORKER, 1, 2));
    assert_string_equal(must(j, 1, WIRE_VERDICT)->text,
                        "worker 1 (devbox) asks for 2 servers and the job has none");
    wire_control server  = hello_of(PEN_WORKER, 0, 0);
    server.u.hello.role  = PEN_SERVER;
    server.u.hello.nonce = 99;
    give(j, 50, 0, server);
    assert_string_equal(must(j, 50, WIRE_VERDICT)->text,
                        "a server on devbox is one more than the 0 of the job");
    drop_job(j);

    j = make_job((const char *const[]){"servers=2", NULL});
    give(j, 1, 0, hello_of(PEN_WORKER, 1, 0));
    assert_string_equal(must(j, 1, WIRE_VERDICT)->text,
                        "worker 1 (devbox) wants no servers and the job has 2; set "
                        "PENSTOCK_SERVERS=2 there too");
    drop_job(j);
}

static void a_job_with_servers_may_go_on_without_a_worker_too(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){"on_worker_loss=continue", NULL});
    give(j, 0, 0, hello_of(PEN_WORKER, 0, 1));
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    assert_int_equal(count(j, WIRE_WELCOME), 1);
    drop_job(j);
}

/* ---- going on -------------------------------------------------------------------------------- */
static void a_death_ends_the_job_unless_it_is_told_to_go_on(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=fail");
    dies(j, 1);
    assert_int_equal(must(j, 0, WIRE_VERDICT)->status, PEN_PEER_LOST);
    assert_int_equal(count(j, WIRE_LOST), 0);
    drop_job(j);
}

static void a_death_is_told_to_all_who_live_and_the_job_goes_on(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 1, "pen_all_reduce", 0);
    dies(j, 1);
    const uint32_t told[] = {0, 2, 3, LAUNCHER_PEER};
    for (int i = 0; i < 4; i++) {
        const letter *l = must(j, told[i], WIRE_LOST);
        assert_int_equal(l->rank, 1);
        assert_int_equal(l->incarnation, j->worker[1]);
        assert_int_equal(l->status, PEN_PEER_LOST);
        assert_string_equal(
            l->text,
            "worker 1 (devbox) is gone in step 418, in pen_all_reduce; last seen 0.0 s ago");
    }
    assert_null(last(j, 0, WIRE_VERDICT));
    assert_int_equal(must(j, 1, WIRE_VERDICT)->status, PEN_NOT_A_MEMBER);
    assert_false(j->has_ended);

    forget(j);
    dies(j, 1); /* told twice, heard once */
    assert_int_equal(count(j, WIRE_LOST), 0);
    leaves(j, 0);
    leaves(j, 2);
    assert_false(j->has_ended);
    leaves(j, 3);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void the_death_of_the_last_worker_ends_the_job_and_the_first_is_the_cause(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    dies(j, 2);
    for (int32_t w = 0; w < WORKERS; w++) dies(j, w);
    assert_int_equal(must(j, LAUNCHER_PEER, WIRE_VERDICT)->rank, 2);
    assert_string_equal(must(j, LAUNCHER_PEER, WIRE_VERDICT)->text,
                        "all workers are gone; the first: worker 2 (devbox) is gone before its "
                        "first step; last seen 0.0 s ago");
    drop_job(j);
}

static void a_silent_worker_is_lost_after_its_lease(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    live(j, 2, 9000);
    assert_int_equal(count(j, WIRE_LOST), 0);
    live(j, 2, 3000);
    assert_int_equal(must(j, 0, WIRE_LOST)->rank, 2);
    drop_job(j);
}

static void a_death_while_others_register_does_not_hold_them_up(void **state)
{
    (void)state;
    job *j = joined("on_worker_loss=continue");
    for (int32_t w = 1; w < WORKERS; w++) registers(j, w);
    assert_null(last(j, 1, WIRE_COMMITTED));
    dies(j, 0);
    must(j, 1, WIRE_COMMITTED);
    drop_job(j);
}

static void who_comes_back_is_told_whom_the_job_lost(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    scheduler_core_peer_down(j->core, 0, j->now);
    dies(j, 1);
    assert_null(last(j, 0, WIRE_LOST));
    give(j, 70, 0, hello_of(PEN_WORKER, 0, 0));
    assert_int_equal(must(j, 70, WIRE_LOST)->rank, 1);
    drop_job(j);
}

/* ---- what failed ----------------------------------------------------------------------------- */
static void faults(job *j, int32_t rank, uint64_t group, uint64_t call, pen_status status,
                   int32_t culprit, const char *text)
{
    wire_control c  = {.kind = WIRE_FAULT};
    c.u.fault.group = group;
    c.u.fault.call  = call;
    why_set(&c.u.fault.why, status, "%s", text);
    why_culprit(&c.u.fault.why, PEN_WORKER, culprit, -1, "x");
    c.u.fault.why.missing[0] = culprit;
    c.u.fault.why.missing_n  = 1;
    say(j, rank, c);
}

static void the_first_report_of_a_failed_call_is_told_to_all(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 3, "after pen_metric", 31000);
    faults(j, 0, 1, 418, PEN_TIMED_OUT, 3,
           "rank 3 (devbox) has not entered all_reduce 'x' (call 418) after 2 s");
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_string_equal(must(j, w, WIRE_FAULTED)->text,
                            "rank 3 (devbox) has not entered all_reduce 'x' (call 418) after 2 s; "
                            "it is alive: in user code since 31 s, last call pen_metric");
        assert_int_equal(must(j, w, WIRE_FAULTED)->group, 1);
    }
    forget(j);
    faults(j, 1, 1, 418, PEN_CORRUPT, 2, "something else");
    assert_int_equal(count(j, WIRE_FAULTED), 1);
    assert_int_equal(must(j, 1, WIRE_FAULTED)->status, PEN_TIMED_OUT);
    forget(j);
    faults(j, 1, 2, 418, PEN_CORRUPT, 2, "another group");
    assert_string_equal(must(j, 0, WIRE_FAULTED)->text, "another group");
    drop_job(j);
}

static void a_culprit_that_was_not_seen_for_long_is_not_called_alive(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 3, "pen_step_end", 0);
    live(j, 3, 6000);
    faults(j, 0, 1, 5, PEN_TIMED_OUT, 3,
           "rank 3 (devbox) has not entered barrier (call 5) after 2 s");
    assert_string_equal(must(j, 1, WIRE_FAULTED)->text,
                        "rank 3 (devbox) has not entered barrier (call 5) after 2 s; it was last "
                        "seen 6 s ago, in pen_step_end");
    drop_job(j);
}

static void a_fault_about_the_dead_says_what_the_loss_said(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    dies(j, 2);
    char lost[640];
    snprintf(lost, sizeof lost, "%s", must(j, 0, WIRE_LOST)->text);
    faults(j, 0, 1, 9, PEN_PEER_LOST, 2, "its connection broke");
    assert_string_equal(must(j, 3, WIRE_FAULTED)->text, lost);
    drop_job(j);
}

static void only_the_newest_faults_are_remembered(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    for (uint64_t call = 1; call <= 300; call++) faults(j, 0, 1, call, PEN_CORRUPT, 2, "first");
    forget(j);
    faults(j, 0, 1, 300, PEN_CORRUPT, 2, "second");
    assert_string_equal(must(j, 0, WIRE_FAULTED)->text, "first");
    faults(j, 0, 1, 1, PEN_CORRUPT, 2, "second");
    assert_string_equal(must(j, 0, WIRE_FAULTED)->text, "second");
    drop_job(j);
}

static void who_waits_long_is_told_for_whom(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 0, "after pen_metric", 31000);
    const int32_t ranks[] = {0, 2};
    wire_control c        = {.kind = WIRE_OVERDUE};
    c.u.overdue.what      = "barrier 'epoch end' (call 212)";
    c.u.overdue.waited_ms = 30000;
    c.u.overdue.n_missing = 1;
    c.u.overdue.missing   = ranks;
    say(j, 1, c);
    assert_string_equal(must(j, 1, WIRE_NOTICE)->text,
                        "waiting 30 s for rank 0 in barrier 'epoch end' (call 212).  It is alive: "
                        "in user code since 31 s, last call pen_metric");
    assert_int_equal(count(j, WIRE_NOTICE), 1);
    c.u.overdue.n_missing = 2;
    leaves(j, 0);
    say(j, 1, c);
    assert_string_equal(must(j, 1, WIRE_NOTICE)->text,
                        "waiting 30 s for ranks 0 2 in barrier 'epoch end' (call 212).  Rank 0 has "
                        "left the job");
    drop_job(j);
}

static void who_waits_for_a_rank_that_left_long_ago_waits_no_longer(void **state)
{
    (void)state;
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        job *j = training(goes_on ? "on_worker_loss=continue" : "on_worker_loss=fail");
        const int32_t ranks[] = {2};
        wire_control c        = {.kind = WIRE_OVERDUE};
        c.u.overdue.what      = "barrier (call 2)";
        c.u.overdue.waited_ms = 30000;
        c.u.overdue.n_missing = 1;
        c.u.overdue.missing   = ranks;
        leaves(j, 2);
        say(j, 1, c); /* it may have come before it left */
        assert_int_equal(count(j, WIRE_LOST) + count(j, WIRE_VERDICT), 0);
        j->now += 2000;
        say(j, 1, c);
        const letter *l = must(j, 0, goes_on ? WIRE_LOST : WIRE_VERDICT);
        assert_int_equal(l->status, PEN_MISMATCH);
        assert_string_equal(
            l->text, goes_on ? "worker 2 (devbox) has left the job and rank 1 waits for it"
                             : "worker 2 (devbox) has left the job and rank 1 waits for it in "
                               "barrier (call 2)");
        drop_job(j);
    }
}

static void status_lists_the_waits_that_last(void **state)
{
    (void)state;
    job *j                = training("on_worker_loss=continue");
    const int32_t ranks[] = {0};
    wire_control c        = {.kind = WIRE_OVERDUE};
    c.u.overdue.what      = "barrier (call 2)";
    c.u.overdue.waited_ms = 3000;
    c.u.overdue.n_missing = 1;
    c.u.overdue.missing   = ranks;
    beat(j, 1, "pen_barrier", 2900);
    say(j, 1, c);
    say(j, 2, c); /* the same call: one line */
    j->now += 1000;
    beat(j, 1, "pen_barrier", 3900);
    give(j, 90, 0, (wire_control){.kind = WIRE_STATUS_ASK});
    assert_int_equal(must(j, 90, WIRE_STATUS)->n, 1);
    assert_string_equal(must(j, 90, WIRE_STATUS)->text,
                        "waiting 4 s for rank 0 in barrier (call 2).  It is alive: last seen 1.0 s "
                        "ago");
    j->now += 1000;
    beat(j, 1, "after pen_barrier", 500); /* it has ended */
    beat(j, 2, "after pen_barrier", 500);
    give(j, 90, 0, (wire_control){.kind = WIRE_STATUS_ASK});
    assert_int_equal(must(j, 90, WIRE_STATUS)->n, 0);
    drop_job(j);
}

/* ---- who is left ----------------------------------------------------------------------------- */
static void shrinks(job *j, int32_t rank, uint64_t group, const int32_t *ranks, uint32_t n)
{
    say(j, rank, (wire_control){.kind = WIRE_SHRINK, .u.shrink = {group, n, ranks}});
}

static void survivors_agree_when_all_who_live_have_asked(void **state)
{
    (void)state;
    job *j                = training("on_worker_loss=continue");
    const int32_t world[] = {3, 0, 1, 2}, live_ones[] = {3, 0, 2};
    shrinks(j, 0, 1, world, 4);
    shrinks(j, 3, 1, world, 4);
    dies(j, 1);
    assert_int_equal(count(j, WIRE_SHRUNK), 0);
    shrinks(j, 2, 1, live_ones, 3); /* it knows already who is lost */
    const uint64_t group = must(j, 0, WIRE_SHRUNK)->new_group;
    assert_int_not_equal(group, 0);
    for (uint32_t w = 0; w < WORKERS; w += w == 0 ? 2 : 1) {
        const letter *l = must(j, w, WIRE_SHRUNK);
        assert_int_equal(l->status, PEN_OK);
        assert_int_equal(l->new_group, group);
        assert_int_equal(l->n, 3);
        assert_int_equal(l->ranks[0], 3);
        assert_int_equal(l->ranks[1], 0);
        assert_int_equal(l->ranks[2], 2);
    }
    forget(j);
    shrinks(j, 2, 1, live_ones, 3); /* its answer was lost */
    assert_int_equal(must(j, 2, WIRE_SHRUNK)->new_group, group);
    assert_int_equal(count(j, WIRE_SHRUNK), 1);
    shrinks(j, 2, group, live_ones, 3); /* the group they made can shrink too */
    shrinks(j, 3, group, live_ones, 3);
    forget(j);
    dies(j, 0);
    assert_int_equal(must(j, 3, WIRE_SHRUNK)->n, 2);
    assert_int_not_equal(must(j, 3, WIRE_SHRUNK)->new_group, group);
    drop_job(j);
}

static void who_has_left_is_not_waited_for_either(void **state)
{
    (void)state;
    job *j                = training("on_worker_loss=continue");
    const int32_t ranks[] = {0, 1};
    shrinks(j, 0, 9, ranks, 2);
    leaves(j, 1);
    assert_int_equal(must(j, 0, WIRE_SHRUNK)->n, 1);
    drop_job(j);
}

static void lists_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    job *j                   = training("on_worker_loss=continue");
    const int32_t lists[][3] = {{0, 0, 1}, {0, 1, 4}, {0, -1, 1}, {1, 2, 3}};
    for (int i = 0; i < 4; i++) {
        forget(j);
        shrinks(j, 0, 9, lists[i], 3);
        assert_int_equal(must(j, 0, WIRE_SHRUNK)->status, PEN_INVALID_ARGUMENT);
    }
    shrinks(j, 0, 9, NULL, 0);
    drop_job(j);
}

static void many_agreements_make_room_for_each_other(void **state)
{
    (void)state;
    job *j              = training("on_worker_loss=continue");
    const int32_t own[] = {0}, both[] = {0, 1};
    for (uint64_t group = 1; group <= 200; group++) {
        shrinks(j, 0, group, own, 1);
        assert_int_equal(must(j, 0, WIRE_SHRUNK)->group, group);
    }
    for (uint64_t group = 1000; group < 1064; group++) shrinks(j, 0, group, both, 2);
    shrinks(j, 0, 2000, both, 2);
    assert_int_equal(must(j, 0, WIRE_SHRUNK)->status, PEN_NO_MEMORY);
    drop_job(j);
}

/* ---- the store ------------------------------------------------------------------------------- */
static void stores(job *j, int32_t rank, uint64_t id, wire_store_op op, const char *key,
                   const char *data, int64_t delta)
{
    wire_control c       = {.kind = WIRE_STORE};
    c.u.store.id         = id;
    c.u.store.done_below = 1;
    c.u.store.op         = (int32_t)op;
    c.u.store.key        = key;
    c.u.store.data       = data;
    c.u.store.data_size  = data ? strlen(data) : 0;
    c.u.store.delta      = delta;
    say(j, rank, c);
}

static void a_get_waits_until_the_key_is_set(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    stores(j, 1, 1, WIRE_STORE_GET, "address", NULL, 0);
    stores(j, 1, 1, WIRE_STORE_GET, "address", NULL, 0); /* asked again */
    stores(j, 2, 1, WIRE_STORE_GET, "other", NULL, 0);
    assert_int_equal(count(j, WIRE_STORED), 0);
    stores(j, 0, 1, WIRE_STORE_SET, "address", "devbox:7", 0);
    assert_int_equal(must(j, 0, WIRE_STORED)->status, PEN_OK);
    assert_int_equal(must(j, 1, WIRE_STORED)->size, 8);
    assert_memory_equal(must(j, 1, WIRE_STORED)->data, "devbox:7", 8);
    assert_int_equal(count(j, WIRE_STORED), 2);
    forget(j);
    stores(j, 3, 1, WIRE_STORE_GET, "address", NULL, 0);
    assert_int_equal(must(j, 3, WIRE_STORED)->size, 8);
    drop_job(j);
}

static void an_add_is_carried_out_once_however_often_it_is_said(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    for (int i = 0; i < 3; i++) {
        stores(j, 0, 1, WIRE_STORE_ADD, "tickets", NULL, 5);
        assert_int_equal(must(j, 0, WIRE_STORED)->value, 5);
    }
    stores(j, 1, 1, WIRE_STORE_ADD, "tickets", NULL, -2);
    assert_int_equal(must(j, 1, WIRE_STORED)->value, 3);
    stores(j, 0, 1, WIRE_STORE_ADD, "tickets", NULL, 5);
    assert_int_equal(must(j, 0, WIRE_STORED)->value, 5); /* as it was answered then */
    stores(j, 0, 2, WIRE_STORE_ADD, "tickets", NULL, 1);
    assert_int_equal(must(j, 0, WIRE_STORED)->value, 4);
    drop_job(j);
}

static void a_late_repeat_of_a_set_does_not_undo_a_newer_one(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    stores(j, 0, 1, WIRE_STORE_SET, "k", "old", 0);
    stores(j, 1, 1, WIRE_STORE_SET, "k", "new", 0);
    stores(j, 0, 1, WIRE_STORE_SET, "k", "old", 0);
    stores(j, 2, 1, WIRE_STORE_GET, "k", NULL, 0);
    assert_memory_equal(must(j, 2, WIRE_STORED)->data, "new", 3);
    drop_job(j);
}

static void a_value_that_is_no_counter_is_not_added_to(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    stores(j, 0, 1, WIRE_STORE_SET, "k", "three", 0);
    stores(j, 0, 2, WIRE_STORE_ADD, "k", NULL, 1);
    assert_int_equal(must(j, 0, WIRE_STORED)->status, PEN_MISMATCH);
    assert_string_equal(must(j, 0, WIRE_STORED)->text, "'k' holds 5 bytes, and a counter has 8");
    drop_job(j);
}

static void more_waiting_gets_than_there_is_room_for_do_no_harm(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    for (uint64_t id = 1; id <= 5000; id++) stores(j, 1, id, WIRE_STORE_GET, "k", NULL, 0);
    stores(j, 0, 1, WIRE_STORE_SET, "k", "v", 0);
    assert_int_equal(count(j, WIRE_STORED), 4096 + 1);
    assert_int_equal(must(j, 1, WIRE_STORED)->id, 5000);
    drop_job(j);
}

/* ---- the record ------------------------------------------------------------------------------ */
static void who_asks_gets_one_record_of_every_rank(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    dies(j, 2);
    forget(j);
    give(j, LAUNCHER_PEER, j->launcher,
         (wire_control){.kind = WIRE_RECORD_ASK, .u.record_ask = {.id = 5}});
    assert_string_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->text, "worker 2 (devbox) is gone");
    assert_int_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->rank, 2);
    assert_int_equal(count(j, WIRE_RECORD_ASK), 3);
    wire_control c       = {.kind = WIRE_RECORD};
    c.u.record.id        = 5;
    c.u.record.asker     = j->launcher;
    c.u.record.data      = "{}\n";
    c.u.record.data_size = 3;
    say(j, 3, c);
    assert_int_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->rank, 3);
    assert_memory_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->data, "{}\n", 3);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_without_servers_begins_when_all_workers_mean_the_same_model),
        cmocka_unit_test(who_wants_servers_where_there_are_none_is_turned_away),
        cmocka_unit_test(a_job_with_servers_may_go_on_without_a_worker_too),
        cmocka_unit_test(a_death_ends_the_job_unless_it_is_told_to_go_on),
        cmocka_unit_test(a_death_is_told_to_all_who_live_and_the_job_goes_on),
        cmocka_unit_test(the_death_of_the_last_worker_ends_the_job_and_the_first_is_the_cause),
        cmocka_unit_test(a_silent_worker_is_lost_after_its_lease),
        cmocka_unit_test(a_death_while_others_register_does_not_hold_them_up),
        cmocka_unit_test(who_comes_back_is_told_whom_the_job_lost),
        cmocka_unit_test(the_first_report_of_a_failed_call_is_told_to_all),
        cmocka_unit_test(a_culprit_that_was_not_seen_for_long_is_not_called_alive),
        cmocka_unit_test(a_fault_about_the_dead_says_what_the_loss_said),
        cmocka_unit_test(only_the_newest_faults_are_remembered),
        cmocka_unit_test(who_waits_long_is_told_for_whom),
        cmocka_unit_test(who_waits_for_a_rank_that_left_long_ago_waits_no_longer),
        cmocka_unit_test(status_lists_the_waits_that_last),
        cmocka_unit_test(survivors_agree_when_all_who_live_have_asked),
        cmocka_unit_test(who_has_left_is_not_waited_for_either),
        cmocka_unit_test(lists_that_make_no_sense_are_refused),
        cmocka_unit_test(many_agreements_make_room_for_each_other),
        cmocka_unit_test(a_get_waits_until_the_key_is_set),
        cmocka_unit_test(an_add_is_carried_out_once_however_often_it_is_said),
        cmocka_unit_test(a_late_repeat_of_a_set_does_not_undo_a_newer_one),
        cmocka_unit_test(a_value_that_is_no_counter_is_not_added_to),
        cmocka_unit_test(more_waiting_gets_than_there_is_room_for_do_no_harm),
        cmocka_unit_test(who_asks_gets_one_record_of_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
