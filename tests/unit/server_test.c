/* server_test.c - a whole server process with a real scheduler, and one worker played by the test. */
#include "tests/support/server_thread.h"

#include "common/base/crc.h"
#include "common/base/log.h"
#include "common/net/auth/auth.h"
#include "common/net/local_socket.h"
#include "common/net/transport/transport.h"
#include "proto/decision.h"
#include "scheduler/shell/scheduler.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { ELEMENTS = 5000, PATIENCE_MS = 20000, SHARDS = 3 }; /* two chunks: one shard has none */

typedef struct {
    scheduler *scheduler;
    server_thread server;
    auth *auth;
    transport *control, *data[SHARDS];
    wire_arena *arena;
    wire_out out;
    wire_control c; /* the last control message */
    wire_data d;    /* the last data message    */
    buf *body;      /* its payload              */
    buf *said;      /* the payload of the last message; `out` is its head */
    uint64_t me, term, epoch, to;
    char address[SHARDS][256];
    plan *plan;
    uint32_t shard[PLAN_PARTITIONS_MAX];
} job;

static const wire_tensor tensor = {
    .name = "w", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {ELEMENTS}};
static const wire_group group = {
    .name = "all", .optim = "sgd lr=1 momentum=0.5", .sync = "bsp", .wire = "raw"};
static const wire_pair resume = {"resume", "yes"};
static const wire_model model = {.n_tensors = 1, .tensor = &tensor, .n_groups = 1, .group = &group};
static const double rate      = 0.5;
static const wire_inputs inputs = {.loss_scale = 1, .weight = 1, .n_rates = 1, .rate = &rate};

/* ---- waiting --------------------------------------------------------------------------------- */
static void receive(transport *t, transport_event_kind kind, transport_event *event,
                    const char *what, int which)
{
    bool broke = false;
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        while (*event = (transport_event){0}, transport_recv(t, event) == PEN_OK) {
            if (event->kind == kind) return;
            broke |= event->kind == TRANSPORT_DOWN;
            buf_release(event->body);
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("%s %d did not come%s", what, which, broke ? ": its connection broke" : "");
}

static void await_control(job *j, wire_control_kind kind)
{
    transport_event event;
    pen_error why;
    do {
        receive(j->control, TRANSPORT_MESSAGE, &event, "control message", (int)kind);
        wire_arena_reset(j->arena);
        assert_int_equal(wire_control_decode(event.head, event.head_size, j->arena, &j->c, &why),
                         PEN_OK);
        if (j->c.kind == WIRE_VERDICT && kind != WIRE_VERDICT) fail_msg("%s", j->c.u.verdict.text);
    } while (j->c.kind != kind);
}

static void say_data(job *j, uint32_t shard)
{
    assert_int_equal(
        transport_send(j->data[shard], 0, j->out.data, j->out.size, buf_acquire(j->said)), PEN_OK);
}

/* Not yet: the scheduler's message arrived before the shard was ready.  A worker would send again too. */
static void resend(job *j, uint32_t shard)
{
    if (j->d.status != PEN_AGAIN) fail_msg("%s", j->d.text);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    say_data(j, shard);
}

static void await_data(job *j, uint32_t shard, wire_kind kind)
{
    transport_event event;
    pen_error why;
    do {
        buf_release(j->body);
        j->body = NULL;
        receive(j->data[shard], TRANSPORT_MESSAGE, &event, "data message", (int)kind);
        wire_arena_reset(j->arena);
        assert_int_equal(wire_data_decode(event.head, event.head_size, j->arena, &j->d, &why),
                         PEN_OK);
        j->body = event.body;
        if (j->d.kind == WIRE_REFUSED) resend(j, shard);
    } while (j->d.kind != kind);
}

/* ---- sending --------------------------------------------------------------------------------- */
static void say(job *j, wire_control *c)
{
    c->from = j->me;
    pen_error why;
    if (wire_control_encode(c, &j->out, &why) != PEN_OK) fail_msg("%s", why.text);
    assert_int_equal(transport_send(j->control, 0, j->out.data, j->out.size, NULL), PEN_OK);
}

static void send_data(job *j, uint32_t shard, wire_data *d, buf *body)
{
    pen_error why;
    d->shard         = shard;
    d->term          = j->term;
    d->epoch         = j->epoch;
    d->from          = j->me;
    d->to            = j->to;
    d->payload_bytes = body != NULL ? body->size : 0;
    if (wire_data_encode(d, &j->out, &why) != PEN_OK) fail_msg("%s", why.text);
    buf_release(j->said);
    j->said = buf_acquire(body);
    say_data(j, shard);
}

/* ---- a job ----------------------------------------------------------------------------------- */
static transport *dial(const job *j, auth_role listener, const char *address)
{
    transport *t;
    transport_event event;
    pen_error why;
    transport_options o = {0};
    auth_dial(j->auth, listener, &o);
    assert_int_equal(transport_dial(address, &o, &t, &why), PEN_OK);
    receive(t, TRANSPORT_UP, &event, address, 0);
    return t;
}

static void start_servers(job *j, const char *store)
{
    pen_error why;
    scheduler_settings s;
    server_settings o;
    config_defaults(scheduler_settings_rows, &s);
    config_defaults(server_settings_rows, &o);
    if (scheduler_start(&s, &j->scheduler, &why) != PEN_OK) fail_msg("%s", why.text);
    snprintf(o.master_addr, sizeof o.master_addr, "%s", scheduler_address(j->scheduler));
    snprintf(o.store, sizeof o.store, "%s", store);
    o.shards = SHARDS;
    if (server_thread_start(&o, &j->server, &why) != PEN_OK) fail_msg("%s", why.text);
}

static void join(job *j)
{
    j->arena               = wire_arena_create(16 << 20);
    const char *address    = scheduler_address(j->scheduler);
    const auth_options who = {
        .role = AUTH_WORKER, .local_sockets = true, .scheduler = address, .address = {address}};
    assert_int_equal(auth_open(&who, &j->auth, NULL), PEN_OK);
    j->control           = dial(j, AUTH_SCHEDULER, address);
    wire_control c       = {.kind = WIRE_HELLO};
    c.u.hello.role       = PEN_WORKER;
    c.u.hello.world_size = 1;
    c.u.hello.servers    = 1;
    c.u.hello.local_rank = c.u.hello.node = -1;
    c.u.hello.nonce                       = 4711;
    c.u.hello.host                        = "test";
    say(j, &c);
    await_control(j, WIRE_WELCOME);
    j->me = j->c.u.welcome.incarnation;
    await_control(j, WIRE_EPOCH);
    j->term  = j->c.u.epoch.term;
    j->epoch = j->c.u.epoch.epoch;
    j->to    = j->c.u.epoch.server[0].incarnation;
    assert_int_equal(j->c.u.epoch.server[0].n_addresses, SHARDS);
    for (int i = 0; i < SHARDS; i++)
        snprintf(j->address[i], sizeof j->address[i], "%s", j->c.u.epoch.server[0].address[i]);
}

static void commit(job *j, int64_t step, int64_t applied)
{
    pen_error why;
    assert_int_equal(plan_create(&model, &j->plan, &why), PEN_OK);
    wire_control c = {.kind = WIRE_REGISTER, .u.register_ = model};
    if (step > 0) {
        c.u.register_.n_settings = 1;
        c.u.register_.setting    = &resume;
    }
    say(j, &c);
    await_control(j, WIRE_PLAN);
    assert_int_equal(j->c.u.plan.n_partitions, j->plan->n_partitions);
    memcpy(j->shard, j->c.u.plan.shard, j->plan->n_partitions * sizeof *j->shard);
    say(j, &(wire_control){.kind = WIRE_READY, .u.ready = {.restored = -1}});
    await_control(j, WIRE_COMMITTED);
    assert_int_equal(j->c.u.committed.step, step);
    assert_int_equal(j->c.u.committed.applied, applied);
    for (int i = 0; i < SHARDS; i++) j->data[i] = dial(j, AUTH_SERVER, j->address[i]);
}

static void start(job *j, const char *store, int64_t step, int64_t applied)
{
    memset(j, 0, sizeof *j);
    start_servers(j, store);
    join(j);
    commit(j, step, applied);
}

static void end(job *j)
{
    pen_error why = {0};
    say(j, &(wire_control){.kind = WIRE_BYE});
    if (server_thread_join(&j->server, &why) != PEN_OK) fail_msg("%s", why.text);
    if (scheduler_join(j->scheduler, &why) != PEN_OK) fail_msg("%s", why.text);
    for (int i = 0; i < SHARDS; i++) transport_close(j->data[i], 0);
    transport_close(j->control, 0);
    auth_close(j->auth);
    wire_arena_destroy(j->arena);
    wire_out_free(&j->out);
    buf_release(j->body);
    buf_release(j->said);
    plan_destroy(j->plan);
}

/* A payload may start at any address. */
static float first_of(const buf *body)
{
    float value;
    memcpy(&value, body->data, sizeof value);
    return value;
}

/* ---- one chunk after the other --------------------------------------------------------------- */
static uint32_t shard_of(const job *j, uint32_t chunk)
{
    return j->shard[j->plan->chunk[chunk].partition];
}

static void send_chunk(job *j, wire_kind kind, uint32_t chunk, uint64_t step, float value,
                       bool snapshot)
{
    const uint64_t count = j->plan->chunk[chunk].count;
    buf *body            = buf_new(count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) ((float *)body->data)[i] = value;
    const uint32_t crc = crc32c(0, body->data, body->size);
    wire_data d        = {.kind = kind, .step = step, .n = 1, .chunk = &chunk, .crc = &crc};
    if (kind == WIRE_PUSH) {
        d.has_inputs      = true;
        d.inputs          = inputs;
        d.inputs.snapshot = snapshot;
    }
    send_data(j, shard_of(j, chunk), &d, body);
    buf_release(body);
}

static void init(job *j, float value)
{
    for (uint32_t c = 0; c < j->plan->n_chunks; c++) {
        send_chunk(j, WIRE_INIT, c, 0, value, false);
        await_data(j, shard_of(j, c), WIRE_RECEIPT);
    }
}

static float first_value(job *j, uint32_t chunk)
{
    wire_data d = {.kind = WIRE_PULL, .flags = WIRE_INITIAL, .n = 1, .chunk = &chunk};
    send_data(j, shard_of(j, chunk), &d, NULL);
    await_data(j, shard_of(j, chunk), WIRE_VALUES);
    return first_of(j->body);
}

/* A whole step with gradient 1 everywhere; returns the last chunk's first new value. */
static float step(job *j, uint64_t number, int64_t applied, bool snapshot)
{
    wire_vote vote[PLAN_PARTITIONS_MAX];
    double squares[PLAN_PARTITIONS_MAX][64];
    const double *sums[PLAN_PARTITIONS_MAX];
    for (uint32_t c = 0; c < j->plan->n_chunks; c++) { /* one chunk is one partition here */
        const uint32_t p = j->plan->chunk[c].partition;
        send_chunk(j, WIRE_PUSH, c, number, 1, snapshot);
        await_data(j, shard_of(j, c), WIRE_PREPARED);
        assert_int_equal(j->d.n_votes, 1);
        vote[p] = j->d.vote[0];
        memcpy(squares[p], j->body->data, j->body->size);
        sums[p] = squares[p];
    }
    wire_data pull = {
        .kind = WIRE_PULL, .step = number, .n = 1, .n_partitions = 1, .has_decision = true};
    uint32_t bad_chunk;
    int32_t bad_rank;
    decision_make(j->plan, vote, sums, &inputs, applied, &pull.decision, &bad_chunk, &bad_rank);
    for (uint32_t c = 0; c < j->plan->n_chunks; c++) {
        const uint32_t p = j->plan->chunk[c].partition;
        pull.chunk       = &c;
        pull.partition   = &p;
        pull.vote_hash   = &vote[p].hash;
        send_data(j, shard_of(j, c), &pull, NULL);
        await_data(j, shard_of(j, c), WIRE_VALUES);
        assert_int_equal(j->d.version[0], applied + 1);
    }
    return first_of(j->body);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static void test_server_trains_snapshots_and_resumes(void **state)
{
    (void)state;
    char store[] = "/tmp/penstock-server-test-XXXXXX";
    assert_non_null(mkdtemp(store));
    job j;
    start(&j, store, 0, 0);
    init(&j, 10);
    assert_float_equal(first_value(&j, 0), 10, 0);
    assert_float_equal(step(&j, 0, 0, false), 9.5, 0);   /* momentum 1    */
    assert_float_equal(step(&j, 1, 1, true), 8.75, 0);   /* momentum 1.5  */
    assert_float_equal(step(&j, 2, 2, false), 7.875, 0); /* momentum 1.75 */
    end(&j);

    start(&j, store, 2, 2);
    for (uint32_t c = 0; c < j.plan->n_chunks; c++) assert_float_equal(first_value(&j, c), 8.75, 0);
    assert_float_equal(step(&j, 2, 2, false), 7.875, 0);
    end(&j);

    char command[256];
    snprintf(command, sizeof command, "rm -r %s", store);
    assert_int_equal(system(command), 0);
}

static void test_server_survives_garbage_on_its_port(void **state)
{
    (void)state;
    job j;
    start(&j, "", 0, 0);
    for (int i = 0; i < SHARDS; i++) {
        const int fd              = socket(AF_UNIX, SOCK_STREAM, 0);
        struct sockaddr_un target = {.sun_family = AF_UNIX};
        assert_true(local_socket_find(j.address[i], target.sun_path));
        assert_int_equal(connect(fd, (struct sockaddr *)&target, sizeof target), 0);
        char garbage[4096];
        for (size_t k = 0; k < sizeof garbage; k++) garbage[k] = (char)(k * 31 + 7);
        (void)!write(fd, garbage, sizeof garbage);
        close(fd);
        assert_int_equal(transport_send(j.data[i], 0, garbage, 200, NULL),
                         PEN_OK); /* a frame that is not a message */
    }
    init(&j, 3);
    assert_float_equal(step(&j, 0, 0, false), 2.5, 0);
    end(&j);
}

static void tell_server(job *j, transport *listener, uint32_t peer, wire_control c)
{
    pen_error why;
    if (wire_control_encode(&c, &j->out, &why) != PEN_OK) fail_msg("%s", why.text);
    assert_int_equal(transport_send(listener, peer, j->out.data, j->out.size, NULL), PEN_OK);
}

/* A scheduler played by the test.  It has received HELLO from a server, welcomed it, and received its beat. */
static transport *welcome_server(job *j, uint32_t *peer)
{
    pen_error why;
    server_settings o;
    transport *listener;
    transport_options options = {0};
    const auth_options who    = {
           .role = AUTH_SCHEDULER, .local_sockets = true, .address = {"127.0.0.1"}};
    config_defaults(server_settings_rows, &o);
    assert_int_equal(auth_open(&who, &j->auth, &why), PEN_OK);
    auth_listen(j->auth, &options);
    assert_int_equal(transport_listen("tcp://127.0.0.1:0", &options, &listener, &why), PEN_OK);
    snprintf(o.master_addr, sizeof o.master_addr, "%s", transport_address(listener));
    o.down_grace_ms = 100;
    assert_int_equal(server_thread_start(&o, &j->server, &why), PEN_OK);

    transport_event event;
    receive(listener, TRANSPORT_MESSAGE, &event, "HELLO", 0);
    *peer = event.peer;
    tell_server(j, listener, *peer,
                (wire_control){.kind      = WIRE_WELCOME,
                               .u.welcome = {.incarnation = 5, .lease_ms = 5000, .job = ""}});
    receive(listener, TRANSPORT_MESSAGE, &event, "BEAT", 0); /* it accepted the answer */
    return listener;
}

static void test_server_ends_when_the_scheduler_is_gone(void **state)
{
    (void)state;
    job j = {0};
    pen_error why;
    uint32_t peer;
    transport *listener = welcome_server(&j, &peer);
    transport_close(listener, 0);
    assert_int_equal(server_thread_join(&j.server, &why), PEN_UNREACHABLE);
    assert_int_equal(why.role, PEN_SCHEDULER);
    if (strstr(why.text, "is gone: its connection broke and did not come back") == NULL)
        fail_msg("%s", why.text);
    auth_close(j.auth);
    wire_out_free(&j.out);
}

/* Its threads have ended by then: it ignores whatever arrives while it waits for the answer. */
static void test_server_after_its_goodbye_ignores_all_but_the_answer(void **state)
{
    (void)state;
    job j = {.arena = wire_arena_create(1 << 20)};
    pen_error why;
    uint32_t peer;
    transport_event event;
    transport *listener = welcome_server(&j, &peer);
    server_leave(j.server.s);
    do {
        receive(listener, TRANSPORT_MESSAGE, &event, "BYE", 0);
        wire_arena_reset(j.arena);
        assert_int_equal(wire_control_decode(event.head, event.head_size, j.arena, &j.c, &why),
                         PEN_OK);
    } while (j.c.kind != WIRE_BYE);
    tell_server(&j, listener, peer,
                (wire_control){.kind = WIRE_EPOCH, .u.epoch = {.term = 1, .epoch = 1, .job = ""}});
    tell_server(&j, listener, peer,
                (wire_control){.kind = WIRE_SEAL, .u.seal = {.term = 1, .epoch = 2}});
    tell_server(&j, listener, peer,
                (wire_control){.kind = WIRE_SNAPSHOT_DONE, .u.snapshot_done = {.text = ""}});
    tell_server(&j, listener, peer, (wire_control){.kind = WIRE_BYED});
    assert_int_equal(server_thread_join(&j.server, &why), PEN_OK);
    transport_close(listener, 0);
    auth_close(j.auth);
    wire_arena_destroy(j.arena);
    wire_out_free(&j.out);
}

static void test_server_leaves_when_it_is_asked_to(void **state)
{
    (void)state;
    pen_error why;
    server_settings o;
    server_thread s;
    config_defaults(server_settings_rows, &o);
    memcpy(o.master_addr, "127.0.0.1", sizeof "127.0.0.1");
    o.master_port = 1; /* no scheduler is there */
    assert_int_equal(server_thread_start(&o, &s, &why), PEN_OK);
    server_leave(s.s);
    assert_int_equal(server_thread_join(&s, &why), PEN_OK);
}

static void test_server_reports_that_no_scheduler_answers(void **state)
{
    (void)state;
    pen_error why;
    server_settings o;
    config_defaults(server_settings_rows, &o);
    memcpy(o.master_addr, "127.0.0.1", sizeof "127.0.0.1");
    o.master_port     = 1;
    o.init_timeout_ms = 100;
    server_thread s;
    assert_int_equal(server_thread_start(&o, &s, &why), PEN_OK);
    assert_int_equal(server_thread_join(&s, &why), PEN_UNREACHABLE);
    assert_non_null(strstr(why.text, "the scheduler at 127.0.0.1:1 has not answered"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_trains_snapshots_and_resumes),
        cmocka_unit_test(test_server_survives_garbage_on_its_port),
        cmocka_unit_test(test_server_ends_when_the_scheduler_is_gone),
        cmocka_unit_test(test_server_after_its_goodbye_ignores_all_but_the_answer),
        cmocka_unit_test(test_server_leaves_when_it_is_asked_to),
        cmocka_unit_test(test_server_reports_that_no_scheduler_answers),
    };
    log_level_set(LOG_ERROR);
    return cmocka_run_group_tests_name("server", tests, NULL, NULL);
}
