/* scheduler_core_test.c - the scheduler's rules, one by one, with a hand-held clock and no
 * network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/log.h"
#include "proto/plan.h"
#include "scheduler/core.h"
#include "tests/support/scheduler_scene.h"
#include "tests/support/wire_samples.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- a job in the hand: what was sent, and who is who ---------------------------------------- */
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
    int64_t step, applied;
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
} job;

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

static void read_letter(letter *l, const wire_control *m)
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
    case WIRE_MET:
        l->generation = m->u.met.generation;
        l->status     = m->u.met.status;
        l->size       = m->u.met.data_size;
        assert_true(l->size <= DATA_MAX);
        if (l->size) memcpy(l->data, m->u.met.data, l->size);
        break;
    case WIRE_NOTICE:
        copy(l->text, sizeof l->text, m->u.notice.text);
        l->generation = m->u.notice.generation;
        l->n          = m->u.notice.n_missing;
        l->rank       = l->n > 0 ? m->u.notice.missing[0] : -1;
        l->status     = m->u.notice.quiet;
        break;
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
    if (level == LOG_DEBUG) return;
    copy(((job *)user)->logged, sizeof((job *)user)->logged, line);
}

static void on_ended(void *user, pen_status status, const pen_error *why)
{
    job *j = user;
    assert_false(j->has_ended);
    j->has_ended = true;
    j->status    = status;
    copy(j->ended_with, sizeof j->ended_with, why ? why->text : "");
}

static job *make_job(const char *const *strings)
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

static void drop_job(job *j)
{
    scheduler_core_destroy(j->core);
    free(j->sent);
    free(j);
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

static uint32_t count(const job *j, wire_control_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_sent; i++) n += j->sent[i].kind == kind;
    return n;
}

static const letter *must(const job *j, uint32_t peer, wire_control_kind kind)
{
    const letter *l = last(j, peer, kind);
    if (!l) fail_msg("peer %u got no %s", peer, wire_kind_name((int)kind));
    return l;
}

static void assert_verdict(const job *j, uint32_t peer, pen_status status, const char *text)
{
    const letter *l = must(j, peer, WIRE_VERDICT);
    assert_string_equal(l->text, text);
    assert_int_equal(l->status, status);
}

/* Lets time pass as a shell would: a tick whenever one is wanted. */
static void pass(job *j, uint64_t ms)
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

static void give(job *j, uint32_t peer, wire_control *message, uint64_t from)
{
    message->from = from;
    scheduler_core_receive(j->core, peer, message, j->now);
}

/* ---- who says what --------------------------------------------------------------------------- */
static const char *const worker_hosts[] = {"devbox", "devbox", "b", "c"};
static const char *const addresses[]    = {"tcp://devbox:1", "tcp://devbox:2"};

static wire_control hello_of(int32_t role, int32_t rank, int32_t world, int32_t servers,
                             uint64_t nonce)
{
    wire_control c       = {.kind = WIRE_HELLO};
    c.u.hello.role       = role;
    c.u.hello.rank       = rank;
    c.u.hello.world_size = world;
    c.u.hello.servers    = servers;
    c.u.hello.nonce      = nonce;
    c.u.hello.pid        = 4000 + rank;
    c.u.hello.host  = role == PEN_WORKER && rank >= 0 && rank < 4 ? worker_hosts[rank] : "devbox";
    c.u.hello.job   = "mine";
    c.u.hello.store = "";
    c.u.hello.n_addresses = role == PEN_SERVER ? 2 : 0;
    c.u.hello.address     = addresses;
    return c;
}

static uint64_t hello(job *j, uint32_t peer, wire_control *c)
{
    forget(j);
    give(j, peer, c, 0);
    const letter *l = last(j, peer, WIRE_WELCOME);
    return l ? l->incarnation : 0;
}

static uint64_t worker_comes(job *j, int32_t rank, int32_t world, int32_t servers)
{
    wire_control c  = hello_of(PEN_WORKER, rank, world, servers, 10 + (uint64_t)rank);
    j->worker[rank] = hello(j, WORKER_PEER + (uint32_t)rank, &c);
    return j->worker[rank];
}

static uint64_t server_comes(job *j, int32_t rank)
{
    wire_control c  = hello_of(PEN_SERVER, -1, 0, 0, 50000 + (uint64_t)rank);
    j->server[rank] = hello(j, SERVER_PEER + (uint32_t)rank, &c);
    return j->server[rank];
}

static void launcher_comes(job *j)
{
    wire_control c = hello_of(WIRE_LAUNCHER, -1, 0, 0, 90000);
    j->launcher    = hello(j, LAUNCHER_PEER, &c);
    assert_true(j->launcher != 0);
}

static void all_come(job *j, int32_t workers, int32_t servers)
{
    for (int32_t s = 0; s < servers; s++) assert_true(server_comes(j, s) != 0);
    for (int32_t w = 0; w < workers; w++) assert_true(worker_comes(j, w, workers, servers) != 0);
}

static void say_worker(job *j, int32_t rank, wire_control *c)
{
    give(j, WORKER_PEER + (uint32_t)rank, c, j->worker[rank]);
}

static void say_server(job *j, int32_t rank, wire_control *c)
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

static void registers(job *j, int32_t rank, const wire_pair *settings, uint32_t n_settings)
{
    wire_control c = {.kind = WIRE_REGISTER};
    c.u.register_  = (wire_model){3, 1, n_settings, tensors, groups, settings};
    say_worker(j, rank, &c);
}

static void ready(job *j, int32_t server, int64_t restored)
{
    wire_control c = {
        .kind    = WIRE_READY,
        .u.ready = {.restored = restored, .applied = restored > 0 ? restored - 1 : 0}};
    say_server(j, server, &c);
}

static void beat(job *j, int32_t rank, int64_t step, const char *call, uint64_t call_ms)
{
    wire_control c = {.kind   = WIRE_BEAT,
                      .u.beat = {.seq = 1, .step = step, .call = call, .call_ms = call_ms}};
    say_worker(j, rank, &c);
}

static void beat_server(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_BEAT, .u.beat = {.seq = 1, .step = -1, .call = ""}};
    say_server(j, rank, &c);
}

/* Everybody but the silent worker (-1: none) beats once a second. */
static void live(job *j, int32_t workers, int32_t servers, int32_t silent, uint64_t ms)
{
    for (uint64_t t = 0; t < ms && !j->has_ended; t += 1000) {
        pass(j, 1000);
        for (int32_t w = 0; w < workers; w++)
            if (w != silent) beat(j, w, 418, "", 0);
        for (int32_t s = 0; s < servers; s++) beat_server(j, s);
    }
}

static job *training(int32_t workers, int32_t servers)
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

static void meets(job *j, int32_t rank, uint64_t generation, int32_t op, int32_t dtype, uint64_t n,
                  const void *data, const char *label)
{
    wire_control c      = {.kind = WIRE_MEET};
    c.u.meet.generation = generation;
    c.u.meet.op         = op;
    c.u.meet.dtype      = dtype;
    c.u.meet.count      = n;
    c.u.meet.label      = label;
    c.u.meet.data       = data;
    c.u.meet.data_size  = op < 0 ? 0 : n * plan_dtype_bytes((pen_dtype)dtype);
    say_worker(j, rank, &c);
}

static void enters(job *j, int32_t rank, uint64_t generation)
{
    meets(j, rank, generation, -1, 0, 0, NULL, "epoch end");
}

static void owes(job *j, int32_t server, int32_t rank, int64_t step, const char *tensor)
{
    wire_control c = {.kind = WIRE_MISSING, .u.missing = {rank, step, tensor, tensor != NULL}};
    say_server(j, server, &c);
}

static void exits(job *j, int32_t role, int32_t rank, int32_t code, int32_t signal)
{
    wire_control c = {.kind = WIRE_EXITED, .u.exited = {role, rank, 1, code, signal, ""}};
    give(j, LAUNCHER_PEER, &c, j->launcher);
}

static void leaves(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_BYE};
    say_worker(j, rank, &c);
}

static void server_leaves(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_BYE};
    say_server(j, rank, &c);
}

static void breaks(job *j, uint32_t peer)
{
    scheduler_core_peer_down(j->core, peer, j->now);
}

static const char *const nothing[] = {NULL};

/* ---- joining --------------------------------------------------------------------------------- */
static void test_core_sends_the_epoch_when_the_last_has_joined(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    server_comes(j, 0);
    server_comes(j, 1);
    worker_comes(j, 1, 2, 2);
    assert_int_equal(count(j, WIRE_EPOCH), 0);
    worker_comes(j, 0, 2, 2);
    assert_int_equal(count(j, WIRE_EPOCH), 4);
    assert_int_equal(must(j, SERVER_PEER + 1, WIRE_EPOCH)->n, 2);
    drop_job(j);
}

static void test_core_gives_servers_the_lowest_free_rank(void **state)
{
    (void)state;
    job *j         = make_job(nothing);
    wire_control c = hello_of(PEN_SERVER, 1, 0, 0, 1);
    assert_true(hello(j, 1, &c) != 0);
    c = hello_of(PEN_SERVER, -1, 0, 0, 2);
    assert_true(hello(j, 2, &c) != 0);
    assert_int_equal(must(j, 2, WIRE_WELCOME)->rank, 0);
    c = hello_of(PEN_SERVER, -1, 0, 0, 3);
    hello(j, 3, &c);
    assert_int_equal(must(j, 3, WIRE_WELCOME)->rank, 2);
    drop_job(j);
}

static void test_core_turns_away_servers_beyond_what_the_first_worker_says(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    server_comes(j, 0);
    server_comes(j, 1);
    worker_comes(j, 0, 1, 1);
    assert_verdict(j, SERVER_PEER + 1, PEN_MISMATCH, "the job has 1 servers and this is one more");
    assert_int_equal(must(j, WORKER_PEER, WIRE_EPOCH)->n, 1);
    drop_job(j);
}

static void test_core_answers_a_repeated_hello_with_the_same_incarnation(void **state)
{
    (void)state;
    job *j               = make_job(nothing);
    const uint64_t first = worker_comes(j, 0, 2, 1);
    assert_int_equal(first >> 24, 7);
    assert_true(worker_comes(j, 0, 2, 1) == first);
    drop_job(j);
}

static void test_core_gives_a_process_that_restarts_while_joining_its_rank_anew(void **state)
{
    (void)state;
    job *j               = make_job(nothing);
    const uint64_t first = worker_comes(j, 1, 2, 1);
    breaks(j, WORKER_PEER + 1);
    wire_control c        = hello_of(PEN_WORKER, 1, 2, 1, 777);
    const uint64_t second = hello(j, 5, &c);
    assert_true(second != 0 && second != first);
    assert_int_equal(must(j, 5, WIRE_WELCOME)->rank, 1);
    drop_job(j);
}

static void test_core_refuses_a_rank_that_is_taken_to_that_process_alone(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    worker_comes(j, 1, 2, 1);
    wire_control c = hello_of(PEN_WORKER, 1, 2, 1, 777);
    assert_int_equal(hello(j, 5, &c), 0);
    assert_verdict(j, 5, PEN_MISMATCH,
                   "rank 1 of the workers is taken by process 4001 on devbox; process 4001 on "
                   "devbox needs a RANK of "
                   "its own");
    assert_int_equal(count(j, WIRE_VERDICT), 1);
    drop_job(j);
}

static void test_core_refuses_other_sizes_ranks_and_jobs_to_that_process_alone(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    worker_comes(j, 0, 2, 1);
    wire_control c = hello_of(PEN_WORKER, 1, 3, 1, 1);
    hello(j, 5, &c);
    assert_verdict(j, 5, PEN_MISMATCH,
                   "worker 1 (devbox) has a world size of 3, the job has 2 workers");
    c = hello_of(PEN_WORKER, 2, 2, 1, 1);
    hello(j, 5, &c);
    assert_verdict(j, 5, PEN_INVALID_ARGUMENT, "rank 2 (b) is outside the job's 0 .. 1");
    c             = hello_of(PEN_WORKER, 1, 2, 1, 1);
    c.u.hello.job = "yours";
    hello(j, 5, &c);
    assert_verdict(j, 5, PEN_BAD_SETTING, "the scheduler at a runs the job 'mine', not 'yours'");
    drop_job(j);
}

static void test_core_refuses_sizes_that_nobody_can_have(void **state)
{
    (void)state;
    const int32_t worlds[] = {0, -1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        job *j = make_job(nothing);
        assert_int_equal(worker_comes(j, 0, worlds[i], 1), 0);
        assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->status, PEN_BAD_SETTING);
        drop_job(j);
    }
    job *j = make_job(nothing);
    assert_int_equal(worker_comes(j, 0, 2, -1), 0);
    assert_verdict(j, WORKER_PEER, PEN_BAD_SETTING,
                   "worker 0 (devbox) asks for -1 servers and a job has 0 .. 1024; say how many "
                   "with --servers, on the "
                   "scheduler or on all workers");
    drop_job(j);
}

static void test_core_names_the_worker_that_has_not_joined(void **state)
{
    (void)state;
    static const char *const hosts[] = {"a", "a", "b"};
    job *j                           = make_job(nothing);
    server_comes(j, 0);
    for (int32_t w = 0; w < 3; w++) {
        wire_control c = hello_of(PEN_WORKER, w, 4, 1, 10 + (uint64_t)w);
        c.u.hello.host = hosts[w];
        assert_true(hello(j, WORKER_PEER + (uint32_t)w, &c) != 0);
    }
    pass(j, 299999);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    pass(j, 1);
    assert_verdict(
        j, WORKER_PEER, PEN_TIMED_OUT,
        "1 of 4 workers has not joined after 300 s: rank 3.  Joined: 0 (a) 1 (a) 2 (b).  "
        "`penstock doctor --master-addr a` on its host tests the way");
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 3);
    assert_int_equal(count(j, WIRE_VERDICT), 4);
    drop_job(j);
}

static void test_core_names_the_servers_that_have_not_joined(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    server_comes(j, 0);
    worker_comes(j, 0, 1, 3);
    pass(j, 300000);
    assert_verdict(j, WORKER_PEER, PEN_TIMED_OUT,
                   "2 of 3 servers have not joined after 300 s: servers 1 2.  Joined: 0 (devbox).  "
                   "`penstock doctor --master-addr a` on their hosts tests the way");
    drop_job(j);
}

static void test_core_cuts_a_list_of_missing_ranks_that_would_not_fit(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    worker_comes(j, 0, 2000, 1);
    pass(j, 300000);
    const char *text = must(j, WORKER_PEER, WIRE_VERDICT)->text;
    assert_non_null(strstr(text, "1999 of 2000 workers have not joined"));
    assert_non_null(strstr(text, " more"));
    assert_non_null(strstr(text, "on their hosts tests the way"));
    drop_job(j);
}

static void test_core_lets_1000_workers_join_register_and_meet_in_a_second(void **state)
{
    (void)state;
    const struct timespec zero = {0};
    struct timespec begin = zero, end = zero;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    job *j = make_job(nothing);
    all_come(j, 1000, 8);
    assert_int_equal(count(j, WIRE_EPOCH), 1008);
    forget(j);
    for (int32_t w = 0; w < 1000; w++) registers(j, w, NULL, 0);
    assert_int_equal(count(j, WIRE_PLAN), 1008);
    for (int32_t s = 0; s < 8; s++) ready(j, s, -1);
    for (int32_t w = 0; w < 1000; w++) enters(j, w, 1);
    for (int32_t w = 0; w < 1000; w++) beat(j, w, 1, "", 0);
    assert_int_equal(count(j, WIRE_MET), 1000);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    print_message("1,000 workers in %.3f s\n", seconds);
    assert_true(seconds < 5);
    drop_job(j);
}

/* ---- the model ------------------------------------------------------------------------------- */
static void test_core_places_the_model_and_commits_when_all_servers_are_ready(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    all_come(j, 2, 2);
    forget(j);
    registers(j, 1, NULL, 0);
    assert_int_equal(count(j, WIRE_PLAN), 0);
    registers(j, 0, NULL, 0);
    assert_int_equal(count(j, WIRE_PLAN), 4);
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->n_settings,
                     3); /* the model goes to servers ... */
    assert_int_equal(must(j, WORKER_PEER, WIRE_PLAN)->n_settings,
                     0); /* ... and only shards to workers */
    assert_true(must(j, WORKER_PEER, WIRE_PLAN)->n > 0);
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->step, -1);
    ready(j, 0, -1);
    assert_int_equal(count(j, WIRE_COMMITTED), 0);
    ready(j, 1, -1);
    assert_int_equal(count(j, WIRE_COMMITTED), 2);
    assert_int_equal(must(j, WORKER_PEER, WIRE_COMMITTED)->step, 0);
    drop_job(j);
}

static void test_core_names_tensor_and_both_ranks_that_register_different_models(void **state)
{
    (void)state;
    for (int32_t first = 0; first < 2; first++) { /* the same sentence whoever comes first */
        job *j = make_job(nothing);
        all_come(j, 2, 1);
        wire_tensor other[3];
        memcpy(other, tensors, sizeof other);
        other[0].shape[0] = 256; /* rank 0's */
        wire_control c    = {.kind = WIRE_REGISTER};
        c.u.register_     = (wire_model){3, 1, 0, other, groups, NULL};
        if (first == 0) say_worker(j, 0, &c);
        registers(j, 1, NULL, 0);
        if (first == 1) say_worker(j, 0, &c);
        const char *golden =
            "'fc1.weight' is f32[128,784] on rank 1 (devbox) and f32[256,784] on rank 0 (devbox); "
            "all ranks must register the same";
        assert_verdict(j, WORKER_PEER, PEN_MISMATCH, golden);
        assert_verdict(j, SERVER_PEER, PEN_MISMATCH, golden);
        drop_job(j);
    }
}

static void test_core_sends_again_what_a_returning_member_missed(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    all_come(j, 1, 1);
    breaks(j, SERVER_PEER);
    registers(j, 0, NULL, 0);
    assert_null(last(j, SERVER_PEER, WIRE_PLAN));
    const uint64_t before = j->server[0];
    assert_true(server_comes(j, 0) == before);
    must(j, SERVER_PEER, WIRE_EPOCH);
    must(j, SERVER_PEER, WIRE_PLAN);
    breaks(j, WORKER_PEER);
    ready(j, 0, -1);
    worker_comes(j, 0, 1, 1);
    must(j, WORKER_PEER, WIRE_COMMITTED);
    forget(j);
    registers(j, 0, NULL, 0);
    must(j, WORKER_PEER, WIRE_PLAN);
    must(j, WORKER_PEER, WIRE_COMMITTED);
    drop_job(j);
}

/* ---- restoring ------------------------------------------------------------------------------- */
static job *with_snapshots(const int64_t *a, uint32_t n_a, const int64_t *b, uint32_t n_b,
                           const char *key)
{
    job *j                      = make_job(nothing);
    const int64_t *steps[]      = {a, b};
    const uint32_t n_steps[]    = {n_a, n_b};
    static const char *stores[] = {"/data/0", "/data/1"};
    for (int32_t s = 0; s < 2; s++) {
        wire_control c        = hello_of(PEN_SERVER, s, 0, 0, 50000 + (uint64_t)s);
        c.u.hello.store       = stores[s];
        c.u.hello.snapshot    = steps[s];
        c.u.hello.n_snapshots = n_steps[s];
        j->server[s]          = hello(j, SERVER_PEER + (uint32_t)s, &c);
    }
    worker_comes(j, 0, 1, 2);
    forget(j);
    const wire_pair pair = {key ? key : "mode", key ? "yes" : "ps-bsp"};
    registers(j, 0, &pair, 1);
    return j;
}

static void test_core_restores_the_newest_snapshot_that_all_servers_have(void **state)
{
    (void)state;
    const int64_t a[] = {1000, 1300, 1200}, b[] = {1200, 1000};
    job *j = with_snapshots(a, 3, b, 2, "resume");
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->step, 1200);
    ready(j, 0, 1200);
    ready(j, 1, 1200);
    assert_int_equal(must(j, WORKER_PEER, WIRE_COMMITTED)->step, 1200);
    assert_int_equal(must(j, WORKER_PEER, WIRE_COMMITTED)->applied, 1199);
    drop_job(j);
}

static void test_core_asks_what_to_do_with_snapshots_that_are_there(void **state)
{
    (void)state;
    const int64_t a[] = {1200};
    job *j            = with_snapshots(a, 1, NULL, 0, NULL);
    assert_verdict(j, WORKER_PEER, PEN_BAD_SETTING,
                   "store /data/0 holds a snapshot of step 1200; say --resume to go on from it or "
                   "--fresh to begin anew");
    drop_job(j);
}

static void test_core_begins_anew_when_fresh_is_said(void **state)
{
    (void)state;
    const int64_t a[] = {1200};
    job *j            = with_snapshots(a, 1, a, 1, "fresh");
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->step, -1);
    drop_job(j);
}

static void test_core_says_which_store_has_nothing_to_resume_from(void **state)
{
    (void)state;
    const int64_t a[] = {1200}, b[] = {1100};
    job *j = with_snapshots(a, 1, NULL, 0, "resume");
    assert_verdict(j, WORKER_PEER, PEN_NOT_FOUND,
                   "--resume found no snapshot in store /data/1 of server 1 (devbox); say --fresh "
                   "to begin anew");
    drop_job(j);
    j = with_snapshots(a, 1, b, 1, "resume");
    assert_verdict(j, WORKER_PEER, PEN_NOT_FOUND,
                   "--resume found no snapshot that all 2 servers have: the newest in store "
                   "/data/0 is of step 1200; "
                   "say --fresh to begin anew");
    drop_job(j);
}

static void test_core_ends_the_job_when_a_server_restored_something_else(void **state)
{
    (void)state;
    const int64_t a[] = {1200};
    job *j            = with_snapshots(a, 1, a, 1, "resume");
    ready(j, 1, -1);
    assert_verdict(j, WORKER_PEER, PEN_STORE,
                   "server 1 (devbox) did not restore step 1200 from its store /data/1");
    drop_job(j);
}

/* ---- life and death -------------------------------------------------------------------------- */
static void test_core_declares_a_silent_worker_dead_after_its_lease_and_not_before(void **state)
{
    (void)state;
    job *j = training(2, 1);
    live(j, 2, 1, -1, 1000);
    live(j, 2, 1, 1, 9000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    live(j, 2, 1, 1, 1000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 1);
    owes(j, 0, 1, 418, "fc1.weight");
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "worker 1 (devbox) is gone: it has not pushed 'fc1.weight' for step 418; last "
                   "seen 10.0 s ago");
    drop_job(j);
}

static void test_core_keeps_a_worker_alive_that_beats_but_does_nothing_else(void **state)
{
    (void)state;
    job *j = training(2, 1);
    live(j, 2, 1, -1, 120000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    assert_false(j->has_ended);
    drop_job(j);
}

static void test_core_blames_nobody_for_its_own_pause(void **state)
{
    (void)state;
    job *j = training(2, 1);
    assert_true(scheduler_core_next_ms(j->core) != UINT64_MAX);
    j->now += 60000;
    scheduler_core_tick(j->core, j->now);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    assert_non_null(strstr(j->logged, "held up for"));
    live(j, 2, 1, 1, 11000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 1);
    drop_job(j);
}

static void test_core_takes_a_connection_that_comes_back_in_time_for_no_death(void **state)
{
    (void)state;
    job *j                = training(2, 1);
    const uint64_t before = j->worker[1];
    breaks(j, WORKER_PEER + 1);
    pass(j, 900);
    wire_control c = hello_of(PEN_WORKER, 1, 2, 1, 11);
    assert_true(hello(j, 77, &c) == before);
    pass(j, 5000);
    assert_int_equal(count(j, WIRE_VERDICT) + count(j, WIRE_ENQUIRE), 0);
    drop_job(j);
}

static void test_core_declares_a_broken_connection_a_death_after_its_grace(void **state)
{
    (void)state;
    job *j = training(2, 2);
    beat(j, 1, 418, "", 0);
    pass(j, 100);
    breaks(j, WORKER_PEER + 1);
    pass(j, 999);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    pass(j, 1);
    assert_int_equal(count(j, WIRE_ENQUIRE), 2);
    owes(j, 0, 1, 418, "fc2.weight");
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    owes(j, 1, 1, 418, "fc1.weight"); /* the first tensor of the lowest step is named */
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "worker 1 (devbox) is gone: it has not pushed 'fc1.weight' for step 418; last "
                   "seen 1.1 s ago");
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->step, 418);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 1);
    assert_int_equal(count(j, WIRE_VERDICT), 3);
    drop_job(j);
}

static void test_core_ignores_the_old_connection_after_a_new_hello(void **state)
{
    (void)state;
    job *j         = training(2, 1);
    wire_control c = hello_of(PEN_WORKER, 1, 2, 1, 11);
    hello(j, 77, &c);
    forget(j);
    beat(j, 1, 5, "", 0); /* by WORKER_PEER + 1 */
    assert_int_equal(count(j, WIRE_BEAT_ACK), 0);
    breaks(j, WORKER_PEER + 1);
    pass(j, 2000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    drop_job(j);
}

static void test_core_believes_the_launcher_at_once(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    beat(j, 1, 418, "pen_barrier 'epoch end'", 40);
    pass(j, 100);
    exits(j, PEN_WORKER, 1, 0, 9);
    assert_int_equal(count(j, WIRE_ENQUIRE), 1);
    owes(j, 0, 1, -1, NULL); /* the server knows of nothing */
    const char *golden =
        "worker 1 (devbox) is gone in step 418, in pen_barrier 'epoch end'; last seen 0.1 s ago";
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST, golden);
    assert_verdict(j, LAUNCHER_PEER, PEN_PEER_LOST, golden);
    drop_job(j);
}

static void test_core_waits_a_quarter_second_for_servers_that_do_not_answer(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    beat(j, 1, 418, "after pen_metric", 40);
    exits(j, PEN_WORKER, 1, 3, 0);
    pass(j, 249);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    pass(j, 1);
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "worker 1 (devbox) is gone in step 418, after pen_metric; last seen 0.0 s ago");
    drop_job(j);
}

static void test_core_names_what_a_dead_server_held(void **state)
{
    (void)state;
    job *j = training(2, 1);
    beat(j, 0, 418, "", 0);
    beat_server(j, 0);
    pass(j, 100);
    breaks(j, SERVER_PEER);
    pass(j, 1000);
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "server 0 (devbox) is gone: it held 'fc1.weight' and 2 more tensors; step 418; "
                   "last seen 1.1 s ago");
    drop_job(j);
}

static void test_core_reports_a_process_that_fails_before_it_joins(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    launcher_comes(j);
    worker_comes(j, 0, 2, 1);
    exits(j, PEN_WORKER, 1, 1, 0);
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST, "worker 1 exited with code 1 before it joined");
    drop_job(j);
}

static void test_core_counts_an_exit_in_order_as_a_goodbye(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    breaks(j, WORKER_PEER + 1);
    exits(j, PEN_WORKER, 1, 0, 0);
    assert_string_equal(j->logged, "worker 1 (devbox) ended without pen_finalize()");
    live(j, 1, 1, -1, 5000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    drop_job(j);
}

static void test_core_passes_a_failure_on_to_all_and_the_first_one_wins(void **state)
{
    (void)state;
    job *j         = training(2, 1);
    wire_control c = {.kind = WIRE_FAILURE};
    c.u.verdict =
        (pen_error){.status = PEN_DEVICE, .rank = -1, .step = -1, .text = "out of memory on GPU 0"};
    say_worker(j, 1, &c);
    copy(c.u.verdict.text, sizeof c.u.verdict.text, "something else");
    say_worker(j, 0, &c);
    assert_verdict(j, WORKER_PEER, PEN_DEVICE, "out of memory on GPU 0");
    assert_verdict(j, SERVER_PEER, PEN_DEVICE, "out of memory on GPU 0");
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 1);
    drop_job(j);
}

static void test_core_bounds_what_a_failure_claims(void **state)
{
    (void)state;
    job *j         = training(1, 1);
    wire_control c = {.kind = WIRE_FAILURE};
    memset(&c.u.verdict, 0x7f,
           sizeof c.u.verdict); /* no NUL anywhere, 2,139,062,143 missing ranks */
    say_worker(j, 0, &c);
    const letter *l = must(j, SERVER_PEER, WIRE_VERDICT);
    assert_int_equal(l->status, PEN_INTERNAL);
    assert_int_equal(strlen(l->text), sizeof(pen_error){0}.text - 1);
    drop_job(j);
}

static void test_core_tells_the_verdict_to_who_comes_back_and_not_a_member_to_the_dead(void **state)
{
    (void)state;
    job *j = training(3, 1);
    launcher_comes(j);
    breaks(j, WORKER_PEER + 2);
    exits(j, PEN_WORKER, 1, 0, 9);
    owes(j, 0, 1, 418, "fc1.weight");
    assert_null(last(j, WORKER_PEER + 2, WIRE_VERDICT));
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_VERDICT)->status, PEN_NOT_A_MEMBER);

    worker_comes(j, 2, 3, 1);
    assert_int_equal(must(j, WORKER_PEER + 2, WIRE_VERDICT)->status, PEN_PEER_LOST);
    forget(j);
    enters(j, 2, 1); /* whoever still asks is told again */
    assert_int_equal(must(j, WORKER_PEER + 2, WIRE_VERDICT)->status, PEN_PEER_LOST);

    breaks(j, WORKER_PEER + 1);
    worker_comes(j, 1, 3, 1);
    assert_verdict(
        j, WORKER_PEER + 1, PEN_NOT_A_MEMBER,
        "worker 1 (devbox) was removed from the job: worker 1 (devbox) is gone: it has not pushed "
        "'fc1.weight' for step 418; last seen 0.0 s ago");
    drop_job(j);
}

static void test_core_ends_with_the_verdict_when_all_who_were_told_have_gone(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    exits(j, PEN_WORKER, 1, 0, 9);
    owes(j, 0, 1, 418, "fc1.weight");
    breaks(j, WORKER_PEER);
    assert_false(j->has_ended);
    server_leaves(j, 0);
    assert_false(j->has_ended); /* the launcher may not have read it yet */
    breaks(j, LAUNCHER_PEER);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_PEER_LOST);
    assert_non_null(strstr(j->ended_with, "worker 1 (devbox) is gone"));
    drop_job(j);
}

static void test_core_ends_five_seconds_after_the_verdict_at_the_latest(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    exits(j, PEN_WORKER, 1, 0, 9);
    owes(j, 0, 1, 418, "fc1.weight");
    pass(j, 4999);
    assert_false(j->has_ended);
    pass(j, 1);
    assert_true(j->has_ended);
    assert_true(scheduler_core_next_ms(j->core) == UINT64_MAX);
    drop_job(j);
}

static void test_core_stops_the_servers_when_the_last_worker_has_left(void **state)
{
    (void)state;
    job *j = training(2, 2);
    leaves(j, 1);
    must(j, WORKER_PEER + 1, WIRE_BYED);
    leaves(j, 1); /* the answer was lost */
    assert_int_equal(count(j, WIRE_BYED), 2);
    assert_int_equal(count(j, WIRE_STOP), 0);
    leaves(j, 0);
    assert_int_equal(count(j, WIRE_STOP), 2);
    server_leaves(j, 0);
    assert_false(j->has_ended);
    breaks(j, SERVER_PEER + 1);
    pass(j, 1000);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static job *two_workers_are_expected(void)
{
    job *j = make_job((const char *const[]){"world_size=2", "servers=1", NULL});
    launcher_comes(j);
    assert_true(server_comes(j, 0) != 0);
    return j;
}

static void test_core_ends_a_job_whose_programs_never_joined(void **state)
{
    (void)state;
    job *j = two_workers_are_expected();
    exits(j, PEN_WORKER, 1, 0, 0);
    exits(j, PEN_WORKER, 1, 0, 0);
    assert_int_equal(count(j, WIRE_STOP), 0);
    exits(j, PEN_WORKER, 0, 0, 0);
    must(j, SERVER_PEER, WIRE_STOP);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    server_leaves(j, 0);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void test_core_names_a_program_that_ended_without_joining_when_another_joins(void **state)
{
    (void)state;
    static const char text[] = "worker 1 exited with code 0 before it joined";
    job *before              = two_workers_are_expected();
    worker_comes(before, 0, 2, 1);
    exits(before, PEN_WORKER, 1, 0, 0);
    assert_verdict(before, WORKER_PEER, PEN_PEER_LOST, text);
    drop_job(before);

    job *after = two_workers_are_expected();
    exits(after, PEN_WORKER, 1, 0, 0);
    worker_comes(after, 0, 2, 1);
    assert_verdict(after, WORKER_PEER, PEN_PEER_LOST, text);
    drop_job(after);
}

static void test_core_sends_who_comes_after_the_end_home(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){"world_size=1", "servers=2", NULL});
    launcher_comes(j);
    server_comes(j, 0);
    exits(j, PEN_WORKER, 0, 0, 0);
    assert_true(server_comes(j, 1) != 0);
    must(j, SERVER_PEER + 1, WIRE_STOP);
    assert_int_equal(worker_comes(j, 0, 1, 2), 0);
    assert_verdict(j, WORKER_PEER, PEN_WRONG_STATE, "worker 0 has come after the job was over");
    server_leaves(j, 0);
    assert_false(j->has_ended);
    server_leaves(j, 1);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void test_core_does_not_wait_for_ever_for_a_server_that_was_asked_to_end(void **state)
{
    (void)state;
    job *j = training(1, 1);
    leaves(j, 0);
    pass(j, 5000);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    assert_string_equal(j->logged, "server 0 (devbox) has not ended 5 s after it was asked to");
    drop_job(j);
}

static void test_core_calls_a_server_that_leaves_in_the_middle_gone(void **state)
{
    (void)state;
    job *j = training(1, 2);
    server_leaves(j, 1);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->status, PEN_PEER_LOST);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 1);
    drop_job(j);
}

/* ---- meeting --------------------------------------------------------------------------------- */
static void
test_core_releases_a_barrier_when_the_last_has_come_and_answers_again_from_memory(void **state)
{
    (void)state;
    job *j = training(2, 1);
    enters(j, 0, 1);
    enters(j, 0, 1); /* sent again: the same arrival */
    assert_int_equal(count(j, WIRE_MET), 0);
    enters(j, 1, 1);
    assert_int_equal(count(j, WIRE_MET), 2);
    enters(j, 0, 1);
    assert_int_equal(count(j, WIRE_MET), 3);
    assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->generation, 1);
    assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->status, PEN_OK);
    drop_job(j);
}

static void test_core_keeps_several_meetings_apart(void **state)
{
    (void)state;
    job *j = training(2, 1);
    for (uint64_t g = 1; g <= 40; g++) {
        enters(j, 0, g);
        enters(j, 0, g + 1); /* one ahead of the other rank */
        forget(j);
        enters(j, 1, g);
        assert_int_equal(count(j, WIRE_MET), 2);
        assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->generation, g);
    }
    forget(j);
    enters(j, 0, 1000); /* outside the window: not taken, not fatal */
    enters(j, 0, UINT64_MAX);
    enters(j, 1, 1000);
    assert_int_equal(j->n_sent, 0);
    drop_job(j);
}

static void test_core_reduces_in_rank_order_bit_for_bit(void **state)
{
    (void)state;
    const float value[3]  = {1e8f, 1.0f, -1e8f};
    const float expected  = (1e8f + 1.0f) + -1e8f; /* 0; any other order gives 1 */
    const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
    job *j                = training(3, 1);
    for (uint64_t o = 0; o < 3; o++) {
        for (int i = 0; i < 3; i++)
            meets(j, orders[o][i], o + 1, PEN_SUM, PEN_F32, 1, &value[orders[o][i]], "loss");
        const letter *l = must(j, WORKER_PEER + 2, WIRE_MET);
        assert_int_equal(l->size, 4);
        assert_memory_equal(l->data, &expected, 4);
    }
    drop_job(j);
}

#define REDUCES(type, dtype, op, a, b, result)                                                     \
    do {                                                                                           \
        const type x[2] = {(a), (b)}, want = (result);                                             \
        generation++;                                                                              \
        meets(j, 0, generation, (op), (dtype), 1, &x[0], "");                                      \
        meets(j, 1, generation, (op), (dtype), 1, &x[1], "");                                      \
        const letter *l = must(j, WORKER_PEER, WIRE_MET);                                          \
        assert_int_equal(l->generation, generation);                                               \
        assert_int_equal(l->size, sizeof want);                                                    \
        assert_memory_equal(l->data, &want, sizeof want);                                          \
    } while (0)

static void test_core_reduces_every_type_by_every_operation(void **state)
{
    (void)state;
    job *j              = training(2, 1);
    uint64_t generation = 0;
    REDUCES(float, PEN_F32, PEN_AVG, 1, 2, 1.5f);
    REDUCES(float, PEN_F32, PEN_MIN, 1, -2, -2);
    REDUCES(double, PEN_F64, PEN_SUM, 0.1, 0.2, 0.1 + 0.2);
    REDUCES(double, PEN_F64, PEN_PROD, 0.1, 0.2, 0.1 * 0.2);
    REDUCES(double, PEN_F64, PEN_MAX, -1, -2, -1);
    REDUCES(int32_t, PEN_I32, PEN_SUM, INT32_MAX, 1, INT32_MIN); /* wraps */
    REDUCES(int32_t, PEN_I32, PEN_AVG, 3, 4, 3);
    REDUCES(int64_t, PEN_I64, PEN_MIN, -5, 5, -5);
    REDUCES(int64_t, PEN_I64, PEN_PROD, -5, 5, -25);
    REDUCES(uint64_t, PEN_U64, PEN_MAX, UINT64_MAX, 1, UINT64_MAX);
    REDUCES(uint64_t, PEN_U64, PEN_SUM, UINT64_MAX, 2, 1);
    drop_job(j);
}

static void test_core_passes_nan_through_minimum_and_maximum(void **state)
{
    (void)state;
    job *j           = training(2, 1);
    const float x[2] = {1, 0.0f / 0.0f * 1.0f};
    for (uint64_t g = 1; g <= 4; g++) {
        const int op = g <= 2 ? PEN_MIN : PEN_MAX, nan_rank = (int)(g % 2);
        meets(j, 0, g, op, PEN_F32, 1, &x[nan_rank == 0], "");
        meets(j, 1, g, op, PEN_F32, 1, &x[nan_rank == 1], "");
        float got;
        memcpy(&got, must(j, WORKER_PEER, WIRE_MET)->data, sizeof got);
        assert_true(got != got);
    }
    drop_job(j);
}

static void test_core_answers_unsupported_for_types_it_does_not_add(void **state)
{
    (void)state;
    job *j           = training(1, 1);
    const uint16_t x = 0;
    meets(j, 0, 1, PEN_SUM, PEN_F16, 1, &x, "");
    assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->status, PEN_UNSUPPORTED);
    drop_job(j);
}

static void test_core_names_both_ranks_whose_calls_differ(void **state)
{
    (void)state;
    static const float x[1001];
    for (int32_t first = 0; first <= 2; first += 2) { /* the same sentence whoever comes first */
        job *j = training(3, 1);
        for (int32_t turn = 0; turn < 2; turn++) {
            const int32_t rank = turn == 0 ? first : 2 - first;
            meets(j, rank, 4, PEN_SUM, PEN_F32, rank == 2 ? 1000 : 1001, x, "loss");
        }
        assert_verdict(j, WORKER_PEER + 1, PEN_MISMATCH,
                       "all_reduce (call 4) differs: rank 2 has 1,000 f32 SUM 'loss', rank 0 has "
                       "1,001 f32 SUM 'loss'");
        drop_job(j);
    }
}

static void test_core_names_the_golden_call_that_differs(void **state)
{
    (void)state;
    static const float x[1001];
    job *j = training(3, 1);
    for (uint64_t g = 1; g < 418; g++)
        for (int32_t rank = 0; rank < 3; rank++) enters(j, rank, g);
    meets(j, 0, 418, PEN_SUM, PEN_F32, 1001, x, "loss");
    meets(j, 2, 418, PEN_SUM, PEN_F32, 1000, x, "loss");
    assert_verdict(j, SERVER_PEER, PEN_MISMATCH,
                   "all_reduce (call 418) differs: rank 2 has 1,000 f32 SUM 'loss', rank 0 has "
                   "1,001 f32 SUM 'loss'");
    drop_job(j);
}

static void test_core_tells_a_barrier_from_a_reduction(void **state)
{
    (void)state;
    const float x = 1;
    job *j        = training(2, 1);
    enters(j, 0, 1);
    meets(j, 1, 1, PEN_SUM, PEN_F32, 1, &x, "loss");
    assert_verdict(j, WORKER_PEER, PEN_MISMATCH,
                   "call 1 differs: rank 1 has 1 f32 SUM 'loss', rank 0 has a barrier 'epoch end'");
    drop_job(j);
}

static void test_core_refuses_reductions_that_are_too_large_or_lie_about_their_size(void **state)
{
    (void)state;
    static const double x[8193];
    job *j = training(1, 1);
    meets(j, 0, 1, PEN_SUM, PEN_F64, 8193, x, "w");
    assert_verdict(j, WORKER_PEER, PEN_UNSUPPORTED,
                   "all_reduce (call 1): rank 0 has 8,193 elements 'w'; at most 65536 bytes go "
                   "through the scheduler");
    drop_job(j);

    j                   = training(1, 1);
    wire_control c      = {.kind = WIRE_MEET};
    c.u.meet.generation = 1;
    c.u.meet.dtype      = PEN_F32;
    c.u.meet.count      = 1000;
    c.u.meet.data       = x;
    c.u.meet.data_size  = 8;
    say_worker(j, 0, &c);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->status, PEN_INVALID_ARGUMENT);
    drop_job(j);
}

static void enter_212(job *j, int32_t rank)
{
    for (uint64_t g = 200; g < 212; g++)
        for (int32_t r = 0; r < 3; r++) enters(j, r, g);
    enters(j, rank, 212);
}

static void test_core_tells_those_who_wait_whom_they_wait_for(void **state)
{
    (void)state;
    job *j = training(3, 1);
    for (uint64_t g = 1; g < 212; g++)
        for (int32_t r = 0; r < 3; r++) enters(j, r, g);
    forget(j);
    enters(j, 1, 212);
    enters(j, 2, 212);
    for (int i = 0; i < 30; i++) {
        for (int32_t r = 1; r < 3; r++)
            beat(j, r, 418, "pen_barrier 'epoch end'", (uint64_t)i * 1000);
        beat(j, 0, 418, "after pen_metric", 1000 + (uint64_t)i * 1000);
        beat_server(j, 0);
        pass(j, i < 29 ? 1000 : 999);
    }
    assert_int_equal(count(j, WIRE_NOTICE), 0);
    pass(j, 1);
    assert_int_equal(count(j, WIRE_NOTICE), 2);
    assert_null(last(j, WORKER_PEER, WIRE_NOTICE));
    assert_string_equal(must(j, WORKER_PEER + 1, WIRE_NOTICE)->text,
                        "waiting 30 s for rank 0 in barrier 'epoch end' (call 212).  It is alive: "
                        "in user code since "
                        "31 s, last call pen_metric");
    drop_job(j);
}

static void test_core_tells_who_comes_again_whom_it_waits_for(void **state)
{
    (void)state;
    job *j = training(3, 1);
    enters(j, 1, 1);
    assert_int_equal(count(j, WIRE_NOTICE), 0);
    enters(j, 1, 1);
    assert_int_equal(count(j, WIRE_NOTICE), 1); /* to it alone */
    const letter *notice = must(j, WORKER_PEER + 1, WIRE_NOTICE);
    assert_int_equal(notice->generation, 1);
    assert_int_equal(notice->n, 2);
    assert_int_equal(notice->rank, 0);      /* the first of them */
    assert_int_equal(notice->status, true); /* not for the log */
    enters(j, 0, 1);
    enters(j, 1, 1);
    notice = must(j, WORKER_PEER + 1, WIRE_NOTICE);
    assert_int_equal(notice->n, 1);
    assert_int_equal(notice->rank, 2);
    drop_job(j);
}

static void test_core_says_that_a_missing_rank_is_disconnected_or_one_of_many(void **state)
{
    (void)state;
    static const char *const quick[] = {"warn_ms=500", "down_grace_ms=2000", NULL};
    job *j                           = make_job(quick);
    all_come(j, 3, 1);
    enters(j, 1, 1);
    beat(j, 0, 1, "pen_pull", 0);
    pass(j, 500);
    assert_string_equal(must(j, WORKER_PEER + 1, WIRE_NOTICE)->text,
                        "waiting 0.5 s for ranks 0 2 in barrier 'epoch end' (call 1).  Rank 0 is "
                        "alive: in pen_pull "
                        "since 0.5 s");
    enters(j, 2, 1);
    breaks(j, WORKER_PEER);
    forget(j);
    pass(j, 500);
    assert_string_equal(must(j, WORKER_PEER + 2, WIRE_NOTICE)->text,
                        "waiting 1 s for rank 0 in barrier 'epoch end' (call 1).  Its connection "
                        "is down since 0.5 s");
    drop_job(j);
}

static void test_core_ends_a_wait_for_a_rank_that_has_left(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        job *j = training(2, 1);
        if (late) leaves(j, 0);
        enters(j, 1, 1);
        if (!late) leaves(j, 0);
        assert_verdict(j, WORKER_PEER + 1, PEN_MISMATCH,
                       "worker 0 (devbox) has left the job and rank 1 waits for it in barrier "
                       "'epoch end' (call 1)");
        drop_job(j);
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void part(job *j, int32_t server, int64_t step, pen_status status, const char *text)
{
    wire_control c = {.kind = WIRE_SNAPSHOT_PART, .u.snapshot_part = {step, status, text, 100}};
    say_server(j, server, &c);
}

static void test_core_calls_a_snapshot_done_when_every_server_has_its_part(void **state)
{
    (void)state;
    job *j         = training(2, 2);
    wire_control c = {.kind = WIRE_SNAPSHOT_PLEASE, .u.snapshot_please = {4}};
    say_worker(j, 1, &c);
    must(j, WORKER_PEER, WIRE_SNAPSHOT_PLEASE);
    part(j, 0, 101, PEN_OK, "");
    part(j, 0, 101, PEN_OK, ""); /* sent again */
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 0);
    part(j, 1, 101, PEN_OK, "");
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 3);
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_SNAPSHOT_DONE)->step, 101);
    must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE);
    forget(j);
    part(j, 0, 201, PEN_OK, "");
    part(j, 1, 201, PEN_OK, "");
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 2); /* nobody asked for this one */
    drop_job(j);
}

static void test_core_says_which_server_could_not_write_its_part(void **state)
{
    (void)state;
    job *j = training(1, 2);
    part(j, 0, 101, PEN_OK, "");
    part(j, 1, 101, PEN_STORE, "no space left on device");
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->status, PEN_STORE);
    assert_string_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->text,
                        "no snapshot of step 101: server 1 (devbox): no space left on device");
    assert_int_equal(count(j, WIRE_VERDICT), 0); /* training goes on */
    drop_job(j);
}

static void test_core_survives_snapshots_that_never_become_whole(void **state)
{
    (void)state;
    job *j = training(1, 2);
    for (int64_t step = 0; step < 100; step++) part(j, 0, step, PEN_OK, "");
    part(j, 1, 99, PEN_OK, "");
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->step, 99);
    drop_job(j);
}

/* ---- watching, and nonsense ------------------------------------------------------------------ */
static void test_core_describes_the_job_and_its_waits_to_who_asks(void **state)
{
    (void)state;
    job *j = training(3, 1);
    beat(j, 2, 17, "", 0);
    scheduler_core_refused(j->core);
    wire_control c = {.kind = WIRE_STATUS_ASK};
    give(j, 42, &c, 0);
    const letter *l = must(j, 42, WIRE_STATUS);
    assert_int_equal(l->n, 4);
    assert_int_equal(l->step, 17);
    assert_true(l->refused == 1);
    assert_string_equal(l->text, "training");
    enter_212(j, 1); /* outside the window, then inside */
    enters(j, 1, 3);
    give(j, 42, &c, 0);
    assert_string_equal(
        must(j, 42, WIRE_STATUS)->text,
        "waiting 0.0 s for ranks 0 2 in barrier 'epoch end' (call 3).  Rank 0 is alive: last seen "
        "0.0 s ago");
    drop_job(j);
}

static void test_core_answers_beats_with_the_furthest_step(void **state)
{
    (void)state;
    job *j = training(2, 1);
    beat(j, 0, 7, "", 0);
    beat(j, 1, 5, "", 0);
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_BEAT_ACK)->step, 7);
    drop_job(j);
}

static void test_core_shrugs_off_every_message_out_of_turn(void **state)
{
    (void)state;
    static const char *const none[] = {NULL};
    for (int stage = 0; stage < 3; stage++) {
        job *j = stage == 0 ? make_job(none) : training(2, 1);
        if (stage == 0) worker_comes(j, 0, 2, 1);
        if (stage == 2) leaves(j, 0);
        for (int kind = 0; kind < WIRE_CONTROL_END + 5; kind++) {
            wire_control c = {.kind = (wire_control_kind)kind};
            if (kind == WIRE_BYE || kind == WIRE_FAILURE || kind == WIRE_REGISTER ||
                kind == WIRE_MEET)
                continue;
            say_worker(j, 0, &c);
            say_server(j, 0, &c);
            give(j, 42, &c, 12345);
            give(j, WORKER_PEER, &c, j->worker[0] + 1);
        }
        assert_false(j->has_ended);
        assert_int_equal(count(j, WIRE_ENQUIRE), 0);
        drop_job(j);
    }
}

/* ---- any message, from anybody, at any time: nothing breaks, and what is promised holds ------ */
static uint64_t drawn(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void storm_speaks(job *j, uint64_t *seed)
{
    static const int32_t roles[] = {PEN_WORKER,    PEN_WORKER,    PEN_SERVER,
                                    WIRE_LAUNCHER, WIRE_OBSERVER, 77};
    const int32_t rank           = (int32_t)(drawn(seed) % 5) - 1;
    const uint64_t nonce         = drawn(seed) % 12;
    const uint32_t peer          = (uint32_t)(drawn(seed) % 16);
    wire_control c = wire_sample_control((wire_control_kind)(WIRE_HELLO + drawn(seed) % 25));
    if (drawn(seed) % 4 == 0) c = hello_of(roles[drawn(seed) % 6], rank, 3, 2, nonce);
    if (c.kind == WIRE_MEET) c.u.meet.generation = drawn(seed) % 40;
    if (c.kind == WIRE_EXITED) c.u.exited.rank = rank;
    if (c.kind == WIRE_FAILURE && drawn(seed) % 64)
        return; /* or every job would end in its first second */
    if (c.kind == WIRE_EXITED && drawn(seed) % 16) return;
    give(j, peer, &c, (uint64_t)7 << 24 | (drawn(seed) % 16 + 1));
}

static void test_core_survives_any_message_from_anybody_at_any_time(void **state)
{
    (void)state;
    uint64_t seed = 20240229;
    print_message("seed %" PRIu64 "\n", seed);
    uint32_t n_ended = 0;
    for (int round = 0; round < 300; round++) {
        job *j = make_job(nothing);
        if (round % 2) all_come(j, 3, 2);
        for (int event = 0; event < 400 && !j->has_ended; event++) {
            forget(j);
            if (drawn(&seed) % 20 == 0) breaks(j, (uint32_t)(drawn(&seed) % 16));
            if (drawn(&seed) % 10 == 0) pass(j, drawn(&seed) % 500);
            storm_speaks(j, &seed);
        }
        if (!j->has_ended && round % 2)
            pass(j, 20000); /* all three workers are silent: their lease ends it */
        n_ended += j->has_ended;
        drop_job(j);
    }
    assert_true(n_ended >= 150);
}

/* ---- the will -------------------------------------------------------------------------------- */
static void assert_same_will(const job *j, const char *text)
{
    const uint32_t peers[] = {WORKER_PEER, WORKER_PEER + 1, SERVER_PEER};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(must(j, peers[i], WIRE_WILL)->text, text);
        assert_int_equal(must(j, peers[i], WIRE_WILL)->status, PEN_UNREACHABLE);
    }
}

static void test_core_leaves_its_will_with_everybody_who_joins(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    scheduler_core_introduce(j->core, "10.0.0.7:29500", "devbox");
    worker_comes(j, 0, 2, 1);
    assert_string_equal(
        must(j, WORKER_PEER, WIRE_WILL)->text,
        "the scheduler at 10.0.0.7:29500 is gone: it ran on devbox, and when it last "
        "spoke to all the job was before its first step");
    drop_job(j);
}

static void test_core_tells_all_at_once_when_its_will_has_changed(void **state)
{
    (void)state;
    job *j = training(2, 1);
    pass(j, 4000);
    assert_int_equal(count(j, WIRE_WILL), 0); /* nothing is new */
    beat(j, 0, 417, "pen_step_end", 0);
    beat(j, 1, 418, "pen_ready", 0);
    assert_int_equal(count(j, WIRE_WILL), 0);               /* not to each as it comes */
    assert_true(scheduler_core_next_ms(j->core) == j->now); /* but soon: it is the first step */
    pass(j, 2000);
    assert_int_equal(count(j, WIRE_WILL), 3);
    assert_same_will(j,
                     "the scheduler at a is gone: it ran on a, and when it last spoke to all the "
                     "job was in step 418, worker 1 in pen_ready");
    assert_int_equal(must(j, WORKER_PEER, WIRE_WILL)->step, 418);
    drop_job(j);
}

static void test_core_gives_the_will_again_as_it_was_to_who_comes_back(void **state)
{
    (void)state;
    job *j = training(2, 1);
    beat(j, 0, 5, "pen_step_end", 0);
    pass(j, 2000);
    const letter told = *must(j, WORKER_PEER, WIRE_WILL);
    beat(j, 0, 6, "pen_step_end", 0);
    breaks(j, WORKER_PEER + 1);
    worker_comes(j, 1, 2, 1);
    assert_string_equal(must(j, WORKER_PEER + 1, WIRE_WILL)->text, told.text);
    drop_job(j);
}

/* ---- commands -------------------------------------------------------------------------------- */
static void commands(job *j, int32_t from, uint64_t id, int32_t role, int32_t rank)
{
    wire_control c = {
        .kind      = WIRE_COMMAND,
        .u.command = {
            .id = id, .role = role, .rank = rank, .head = 7, .body = "abc", .body_size = 3}};
    say_worker(j, from, &c);
}

static void assert_answer(const job *j, int32_t rank, pen_status status, const char *text)
{
    const letter *l = must(j, WORKER_PEER, WIRE_REPLY);
    assert_string_equal(l->text, text);
    assert_int_equal(l->status, status);
    assert_int_equal(l->generation, 9);
    assert_int_equal(l->rank, rank);
    assert_int_equal(l->incarnation, j->worker[0]);
}

static void test_core_passes_a_command_and_its_reply_on(void **state)
{
    (void)state;
    job *j = training(2, 1);
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_int_equal(count(j, WIRE_COMMAND), 1);
    const letter *l = must(j, WORKER_PEER + 1, WIRE_COMMAND);
    assert_int_equal(l->rank, 0); /* who asks */
    assert_int_equal(l->generation, 9);
    assert_int_equal(l->step, 7);
    assert_memory_equal(l->data, "abc", 3);

    wire_control c = {.kind    = WIRE_REPLY,
                      .u.reply = {.id        = 9,
                                  .role      = PEN_WORKER,
                                  .rank      = 0,
                                  .asker     = l->incarnation,
                                  .data      = "de",
                                  .data_size = 2}};
    say_worker(j, 1, &c);
    assert_answer(j, 1, PEN_OK, "");
    assert_memory_equal(must(j, WORKER_PEER, WIRE_REPLY)->data, "de", 2);
    drop_job(j);
}

static void test_core_passes_a_command_on_to_all_of_a_role(void **state)
{
    (void)state;
    job *j = training(3, 2);
    commands(j, 0, 9, PEN_WORKER, -1);
    assert_int_equal(count(j, WIRE_COMMAND), 3);
    commands(j, 0, 10, PEN_SERVER, -1);
    assert_int_equal(count(j, WIRE_COMMAND), 5);
    must(j, SERVER_PEER + 1, WIRE_COMMAND);
    drop_job(j);
}

static void test_core_answers_commands_for_who_is_not_there(void **state)
{
    (void)state;
    job *j = training(2, 1);
    commands(j, 0, 9, PEN_WORKER, 2);
    assert_answer(j, 2, PEN_NOT_FOUND, "there is no worker 2; the job has 2");
    commands(j, 0, 9, PEN_SCHEDULER, 0);
    assert_answer(j, 0, PEN_NOT_FOUND, "the scheduler has no handler for command 7");
    leaves(j, 1);
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_answer(j, 1, PEN_NOT_FOUND, "worker 1 (devbox) has left the job");
    assert_int_equal(count(j, WIRE_COMMAND), 0);
    drop_job(j);
}

static void test_core_says_that_who_shall_answer_is_gone(void **state)
{
    (void)state;
    job *j = training(2, 1);
    breaks(j, WORKER_PEER + 1);
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_int_equal(count(j, WIRE_REPLY), 0); /* it may come back, and the command comes again */
    pass(j, 1000);                             /* its death is being looked into */
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_answer(j, 1, PEN_PEER_LOST, "worker 1 (devbox) is gone");
    drop_job(j);
}

static void test_core_drops_a_reply_to_who_did_not_ask(void **state)
{
    (void)state;
    job *j         = training(2, 1);
    wire_control c = {.kind    = WIRE_REPLY,
                      .u.reply = {.id = 9, .role = PEN_WORKER, .rank = 0, .asker = 12345}};
    say_worker(j, 1, &c);
    c.u.reply.rank = 7;
    say_worker(j, 1, &c);
    assert_int_equal(count(j, WIRE_REPLY), 0);
    drop_job(j);
}

static void test_core_refuses_settings_that_no_job_can_have(void **state)
{
    (void)state;
    const struct {
        const char *set[4], *text;
    } cases[] = {
        {{"servers=1", "replicas=1", NULL},
         "replicas=1 needs at least 2 servers, for copies lie on different ones; the job has 1"},
        {{"servers=3", "servers_max=2", NULL}, "servers_max=2 is less than servers=3"},
        {{"world_size=3", "workers_max=2", NULL}, "workers_max=2 is less than world_size=3"},
        {{"world_size=3", "workers_min=4", NULL},
         "workers_min=4 is more than the 3 workers there are"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scheduler_settings settings;
        pen_error why;
        scheduler_core *core            = NULL;
        const scheduler_actions actions = {on_send, on_log, on_ended, NULL, NULL};
        config_defaults(scheduler_settings_rows, &settings);
        assert_int_equal(
            config_from_strings(scheduler_settings_rows, &settings, cases[i].set, &why), PEN_OK);
        assert_int_equal(scheduler_core_create(&settings, 1, "a", &actions, 0, &core, &why),
                         PEN_BAD_SETTING);
        assert_string_equal(why.text, cases[i].text);
        assert_null(core);
    }
}

static void test_core_turns_workers_without_servers_away_where_only_servers_can_help(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"on_worker_loss=wait", "on_worker_loss=wait needs servers: they keep the model for who "
                                "comes back; add --servers, or "
                                "say 'fail' or 'continue'"},
        {"replicas=1", "replicas=1 are copies on servers, and the job has none; add --servers"},
        {"workers_max=3",
         "workers that come while the job trains need servers, which have the model "
         "for them; add --servers, or leave out workers_max=3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job *j = make_job((const char *const[]){cases[i][0], NULL});
        assert_int_equal(worker_comes(j, 0, 2, 0), 0);
        assert_verdict(j, WORKER_PEER, PEN_BAD_SETTING, cases[i][1]);
        drop_job(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_sends_the_epoch_when_the_last_has_joined),
        cmocka_unit_test(test_core_gives_servers_the_lowest_free_rank),
        cmocka_unit_test(test_core_turns_away_servers_beyond_what_the_first_worker_says),
        cmocka_unit_test(test_core_answers_a_repeated_hello_with_the_same_incarnation),
        cmocka_unit_test(test_core_gives_a_process_that_restarts_while_joining_its_rank_anew),
        cmocka_unit_test(test_core_refuses_a_rank_that_is_taken_to_that_process_alone),
        cmocka_unit_test(test_core_refuses_other_sizes_ranks_and_jobs_to_that_process_alone),
        cmocka_unit_test(test_core_refuses_sizes_that_nobody_can_have),
        cmocka_unit_test(test_core_names_the_worker_that_has_not_joined),
        cmocka_unit_test(test_core_names_the_servers_that_have_not_joined),
        cmocka_unit_test(test_core_cuts_a_list_of_missing_ranks_that_would_not_fit),
        cmocka_unit_test(test_core_lets_1000_workers_join_register_and_meet_in_a_second),
        cmocka_unit_test(test_core_places_the_model_and_commits_when_all_servers_are_ready),
        cmocka_unit_test(test_core_names_tensor_and_both_ranks_that_register_different_models),
        cmocka_unit_test(test_core_sends_again_what_a_returning_member_missed),
        cmocka_unit_test(test_core_restores_the_newest_snapshot_that_all_servers_have),
        cmocka_unit_test(test_core_asks_what_to_do_with_snapshots_that_are_there),
        cmocka_unit_test(test_core_begins_anew_when_fresh_is_said),
        cmocka_unit_test(test_core_says_which_store_has_nothing_to_resume_from),
        cmocka_unit_test(test_core_ends_the_job_when_a_server_restored_something_else),
        cmocka_unit_test(test_core_declares_a_silent_worker_dead_after_its_lease_and_not_before),
        cmocka_unit_test(test_core_keeps_a_worker_alive_that_beats_but_does_nothing_else),
        cmocka_unit_test(test_core_blames_nobody_for_its_own_pause),
        cmocka_unit_test(test_core_takes_a_connection_that_comes_back_in_time_for_no_death),
        cmocka_unit_test(test_core_declares_a_broken_connection_a_death_after_its_grace),
        cmocka_unit_test(test_core_ignores_the_old_connection_after_a_new_hello),
        cmocka_unit_test(test_core_believes_the_launcher_at_once),
        cmocka_unit_test(test_core_waits_a_quarter_second_for_servers_that_do_not_answer),
        cmocka_unit_test(test_core_names_what_a_dead_server_held),
        cmocka_unit_test(test_core_reports_a_process_that_fails_before_it_joins),
        cmocka_unit_test(test_core_counts_an_exit_in_order_as_a_goodbye),
        cmocka_unit_test(test_core_passes_a_failure_on_to_all_and_the_first_one_wins),
        cmocka_unit_test(test_core_bounds_what_a_failure_claims),
        cmocka_unit_test(
            test_core_tells_the_verdict_to_who_comes_back_and_not_a_member_to_the_dead),
        cmocka_unit_test(test_core_ends_with_the_verdict_when_all_who_were_told_have_gone),
        cmocka_unit_test(test_core_ends_five_seconds_after_the_verdict_at_the_latest),
        cmocka_unit_test(test_core_stops_the_servers_when_the_last_worker_has_left),
        cmocka_unit_test(test_core_ends_a_job_whose_programs_never_joined),
        cmocka_unit_test(test_core_names_a_program_that_ended_without_joining_when_another_joins),
        cmocka_unit_test(test_core_sends_who_comes_after_the_end_home),
        cmocka_unit_test(test_core_does_not_wait_for_ever_for_a_server_that_was_asked_to_end),
        cmocka_unit_test(test_core_calls_a_server_that_leaves_in_the_middle_gone),
        cmocka_unit_test(
            test_core_releases_a_barrier_when_the_last_has_come_and_answers_again_from_memory),
        cmocka_unit_test(test_core_keeps_several_meetings_apart),
        cmocka_unit_test(test_core_reduces_in_rank_order_bit_for_bit),
        cmocka_unit_test(test_core_reduces_every_type_by_every_operation),
        cmocka_unit_test(test_core_passes_nan_through_minimum_and_maximum),
        cmocka_unit_test(test_core_answers_unsupported_for_types_it_does_not_add),
        cmocka_unit_test(test_core_names_both_ranks_whose_calls_differ),
        cmocka_unit_test(test_core_names_the_golden_call_that_differs),
        cmocka_unit_test(test_core_tells_a_barrier_from_a_reduction),
        cmocka_unit_test(test_core_refuses_reductions_that_are_too_large_or_lie_about_their_size),
        cmocka_unit_test(test_core_tells_those_who_wait_whom_they_wait_for),
        cmocka_unit_test(test_core_tells_who_comes_again_whom_it_waits_for),
        cmocka_unit_test(test_core_says_that_a_missing_rank_is_disconnected_or_one_of_many),
        cmocka_unit_test(test_core_ends_a_wait_for_a_rank_that_has_left),
        cmocka_unit_test(test_core_calls_a_snapshot_done_when_every_server_has_its_part),
        cmocka_unit_test(test_core_says_which_server_could_not_write_its_part),
        cmocka_unit_test(test_core_survives_snapshots_that_never_become_whole),
        cmocka_unit_test(test_core_describes_the_job_and_its_waits_to_who_asks),
        cmocka_unit_test(test_core_answers_beats_with_the_furthest_step),
        cmocka_unit_test(test_core_shrugs_off_every_message_out_of_turn),
        cmocka_unit_test(test_core_survives_any_message_from_anybody_at_any_time),
        cmocka_unit_test(test_core_leaves_its_will_with_everybody_who_joins),
        cmocka_unit_test(test_core_tells_all_at_once_when_its_will_has_changed),
        cmocka_unit_test(test_core_gives_the_will_again_as_it_was_to_who_comes_back),
        cmocka_unit_test(test_core_passes_a_command_and_its_reply_on),
        cmocka_unit_test(test_core_passes_a_command_on_to_all_of_a_role),
        cmocka_unit_test(test_core_answers_commands_for_who_is_not_there),
        cmocka_unit_test(test_core_says_that_who_shall_answer_is_gone),
        cmocka_unit_test(test_core_drops_a_reply_to_who_did_not_ask),
        cmocka_unit_test(test_core_refuses_settings_that_no_job_can_have),
        cmocka_unit_test(test_core_turns_workers_without_servers_away_where_only_servers_can_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
