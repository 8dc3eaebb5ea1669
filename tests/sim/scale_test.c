/* scale_test.c - the scheduler alone with 1,000 workers and 100 servers: messages, bytes and time to let them join, to
 * run for a while, to replace a server that died, and to add a late worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <malloc.h>
#include <time.h>

#include <cmocka.h>

#include "scheduler/core/core.h"

enum {
    WORKERS          = 1000,
    SERVERS          = 100,
    MEMBERS          = WORKERS + SERVERS,
    TENSORS          = 200,
    ROWS_MAX         = 1024,
    NEWCOMER         = MEMBERS, /* peer number of a process in another's place */
    PEERS            = MEMBERS + 1,
    LEASE_MS         = 10000,
    BEATS            = 10, /* in the time of a lease */
    MEMBER_BYTES_MAX = 64 << 10
};

typedef struct {
    scheduler_core *core;
    uint64_t now_ms;
    uint64_t incarnation[PEERS];
    wire_out out;
    wire_replica row[ROWS_MAX];
    uint32_t n_rows, kinds[128];
    uint64_t messages, bytes, epoch, term, seal_epoch;
    double started_s;
    bool is_committed;
} rig;

static wire_tensor tensor[TENSORS];
static char name[TENSORS][24];
static wire_group group = {
    .name = "g", .optim = "sgd lr=0.1", .sync = "bsp", .wire = "raw", .schedule = "constant"};
static wire_model model = {.n_tensors = TENSORS, .n_groups = 1, .tensor = tensor, .group = &group};

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- messages of the scheduler --------------------------------------------------------------- */
static void send_all(void *user, const uint32_t *peers, uint32_t n, const wire_control *m)
{
    rig *r = user;
    pen_error why;
    assert_int_equal(wire_control_encode(m, &r->out, &why), PEN_OK);
    r->messages += n;
    r->bytes += n * r->out.size;
    r->kinds[m->kind] += n;
    if (m->kind == WIRE_WELCOME) r->incarnation[peers[0]] = m->u.welcome.incarnation;
    if (m->kind == WIRE_COMMITTED) r->is_committed = true;
    if (m->kind == WIRE_SEAL) r->seal_epoch = m->u.seal.epoch;
    if (m->kind == WIRE_EPOCH) {
        r->term  = m->u.epoch.term;
        r->epoch = m->u.epoch.epoch;
    }
    const wire_replica *rows = m->kind == WIRE_PLAN ? m->u.plan.replica : m->u.epoch.replica;
    const uint32_t n_rows    = m->kind == WIRE_PLAN ? m->u.plan.n_replicas : m->u.epoch.n_replicas;
    if (n < 2 || (m->kind != WIRE_PLAN && m->kind != WIRE_EPOCH) || n_rows == 0) return;
    assert_true(n_rows <= ROWS_MAX);
    memcpy(r->row, rows, n_rows * sizeof *rows);
    r->n_rows = n_rows;
}

static void say(void *user, int level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static void ended(void *user, pen_status status, const pen_error *why)
{
    (void)user;
    fail_msg("the job ended with status %d: %s", (int)status, why != NULL ? why->text : "");
}

static pen_status keeps(void *user, const void *data, size_t size)
{
    (void)user;
    (void)data;
    return size > 0 ? PEN_OK : PEN_STORE;
}

/* ---- messages of members --------------------------------------------------------------------- */
static bool is_worker(uint32_t peer)
{
    return peer < WORKERS;
}

static void hear(rig *r, uint32_t peer, wire_control *m)
{
    m->from = r->incarnation[peer];
    scheduler_core_receive(r->core, peer, m, r->now_ms);
}

static void hello(rig *r, uint32_t peer, int32_t role, int32_t rank)
{
    static const char *address[] = {"tcp://10.11.12.13:45678"};
    wire_control m               = {.kind = WIRE_HELLO};
    m.u.hello.role               = role;
    m.u.hello.rank               = rank;
    m.u.hello.world_size         = WORKERS;
    m.u.hello.servers            = SERVERS;
    m.u.hello.local_rank = m.u.hello.node = -1;
    m.u.hello.nonce                       = 77 + peer;
    m.u.hello.host                        = "node-0123.cluster.local";
    m.u.hello.job                         = "scale";
    m.u.hello.store                       = "";
    m.u.hello.n_addresses                 = 1;
    m.u.hello.address                     = address;
    scheduler_core_receive(r->core, peer, &m, r->now_ms);
}

static void say_sealed(rig *r, uint32_t peer, int32_t rank)
{
    wire_sealed_report report[ROWS_MAX];
    wire_control m    = {.kind = WIRE_SEALED};
    m.u.sealed.term   = r->term;
    m.u.sealed.epoch  = r->seal_epoch;
    m.u.sealed.report = report;
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (r->row[i].server == rank)
            report[m.u.sealed.n_reports++] = (wire_sealed_report){.shard        = r->row[i].shard,
                                                                  .role         = r->row[i].role,
                                                                  .index        = 100,
                                                                  .step         = 50,
                                                                  .clock        = -1,
                                                                  .all_prepared = true};
    hear(r, peer, &m);
}

static void seal_all(rig *r, uint32_t but)
{
    for (uint32_t s = 0; s < SERVERS; s++)
        if (s != but) say_sealed(r, WORKERS + s, (int32_t)s);
}

static void tick_until(rig *r, uint64_t ms)
{
    while (r->now_ms < ms) {
        const uint64_t next = scheduler_core_next_ms(r->core);
        r->now_ms           = next < ms ? (next > r->now_ms ? next : r->now_ms + 1) : ms;
        scheduler_core_tick(r->core, r->now_ms);
    }
}

/* ---- phases ---------------------------------------------------------------------------------- */
static void begin(rig *r)
{
    r->messages = r->bytes = 0;
    r->started_s           = cpu_s();
}

static void end(const rig *r, const char *what, double simulated_s, uint64_t messages_max,
                uint64_t bytes_max, double cpu_max_s)
{
    const double took = cpu_s() - r->started_s;
    fprintf(stderr, "%-44s %7llu messages  %9.3f MB  %6.3f s of the processor  %6.3f s simulated\n",
            what, (unsigned long long)r->messages, (double)r->bytes / 1e6, took, simulated_s);
    assert_true(r->messages <= messages_max);
    assert_true(r->bytes <= bytes_max);
    assert_true(took <= cpu_max_s);
}

static rig *make(void)
{
    rig *r                            = calloc(1, sizeof *r);
    const scheduler_settings settings = {.world_size      = WORKERS,
                                         .servers         = SERVERS,
                                         .lease_ms        = LEASE_MS,
                                         .down_grace_ms   = 1000,
                                         .init_timeout_ms = 300000,
                                         .replicas        = 1,
                                         .on_worker_loss  = LOSS_CONTINUE,
                                         .workers_min     = 1,
                                         .grace_ms        = 60000,
                                         .wait_ms         = 60000,
                                         .state           = "disk"};
    const scheduler_actions actions   = {
          .send = send_all, .log = say, .ended = ended, .keep = keeps, .user = r};
    pen_error why;
    assert_non_null(r);
    r->now_ms = 1000;
    for (int t = 0; t < TENSORS; t++) {
        snprintf(name[t], sizeof name[t], "layer%d", t);
        tensor[t] = (wire_tensor){.name       = name[t],
                                  .dtype      = PEN_F32,
                                  .grad_dtype = PEN_F32,
                                  .ndim       = 1,
                                  .shape      = {1 << 20},
                                  .init       = ""};
    }
    assert_int_equal(
        scheduler_core_create(&settings, 1, "sched", &actions, r->now_ms, &r->core, &why), PEN_OK);
    return r;
}

static void join_all(rig *r)
{
    begin(r);
    for (uint32_t p = 0; p < MEMBERS; p++)
        hello(r, p, is_worker(p) ? PEN_WORKER : PEN_SERVER,
              (int32_t)(is_worker(p) ? p : p - WORKERS));
    assert_int_equal(r->kinds[WIRE_EPOCH], MEMBERS);
    for (uint32_t p = 0; p < WORKERS; p++)
        hear(r, p, &(wire_control){.kind = WIRE_REGISTER, .u.register_ = model});
    assert_int_equal(r->kinds[WIRE_PLAN], MEMBERS);
    for (uint32_t p = 0; p < MEMBERS; p++) {
        wire_control m     = {.kind = WIRE_READY};
        m.u.ready.restored = -1;
        assert_false(r->is_committed);
        hear(r, p, &m);
    }
    assert_true(r->is_committed);
    end(r, "1,000 workers and 100 servers join", 0, 10 * MEMBERS, 250000000, 20);
}

/* Steps do not pass through the scheduler: it only receives a beat ten times a lease. */
static void train(rig *r)
{
    begin(r);
    for (uint64_t beat = 1; beat <= BEATS; beat++) {
        tick_until(r, r->now_ms + LEASE_MS / BEATS);
        for (uint32_t p = 0; p < MEMBERS; p++) {
            wire_control m = {.kind = WIRE_BEAT};
            m.u.beat.seq   = beat;
            m.u.beat.step  = (int64_t)(10 * beat);
            m.u.beat.call  = "pen_step_end";
            hear(r, p, &m);
        }
    }
    const uint64_t handled = BEATS * MEMBERS + r->messages;
    assert_true(handled <= 3 * BEATS * MEMBERS);
    end(r, "100 steps in 10 s: one beat a second each", 10, 20 * MEMBERS, 4000000, 10);
}

static void lose_server(rig *r)
{
    const uint64_t at     = r->now_ms;
    const uint32_t before = r->kinds[WIRE_EPOCH];
    begin(r);
    scheduler_core_peer_down(r->core, WORKERS + 7, r->now_ms);
    tick_until(r, r->now_ms + 1100);
    assert_int_equal(r->kinds[WIRE_SEAL], SERVERS - 1);
    seal_all(r, 7);
    assert_int_equal(r->kinds[WIRE_EPOCH] - before, MEMBERS - 1);
    for (uint32_t i = 0; i < r->n_rows; i++) assert_int_not_equal(r->row[i].server, 7);
    end(r, "a server dies and others take over", (double)(r->now_ms - at) / 1000, 4 * MEMBERS,
        250000000, 20);
}

static void join_late(rig *r)
{
    const uint32_t before = r->kinds[WIRE_EPOCH];
    begin(r);
    hello(r, NEWCOMER, PEN_SERVER, 7);
    wire_control m     = {.kind = WIRE_READY};
    m.u.ready.restored = -1;
    hear(r, NEWCOMER, &m);
    tick_until(r, r->now_ms + 500);
    seal_all(r, 7);
    assert_true(r->kinds[WIRE_EPOCH] - before >= MEMBERS);
    end(r, "another comes in its place", 0.5, 5 * MEMBERS, 250000000, 20);
}

static void sim_a_thousand_workers_and_a_hundred_servers(void **state)
{
    (void)state;
    const size_t before = mallinfo2().uordblks;
    rig *r              = make();
    join_all(r);
    train(r);
    const size_t each = (mallinfo2().uordblks - before) / MEMBERS;
    fprintf(stderr, "%zu bytes of memory for each member\n", each);
    assert_true(each <= MEMBER_BYTES_MAX);
    lose_server(r);
    join_late(r);
    scheduler_core_destroy(r->core);
    wire_out_free(&r->out);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_a_thousand_workers_and_a_hundred_servers),
    };
    return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
