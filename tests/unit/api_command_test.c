/* api_command_test.c - pen_command, pen_on_command and pen_reply: two workers and a server
 * as threads with real sockets between them, and a worker alone. */
#include "penstock.h"
#include "scheduler/shell/scheduler.h"
#include "tests/support/server_thread.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 2, ECHO = 1, LATER = 2, NEVER = 3, NESTED = 4, UNKNOWN = 99 };

typedef struct {
    pen_ctx *ctx;
    int rank;
    atomic_int n_run;
    _Atomic(pen_call *) kept; /* for LATER and NEVER */
    pthread_t answerer;
    atomic_bool has_answerer;
    _Atomic pen_status nested, second;
} member;

typedef struct {
    scheduler *scheduler;
    server_thread server;
    member member[RANKS];
} job;

static void ok(pen_status status)
{
    if (status != PEN_OK) fail_msg("%s", pen_last_error(NULL));
}

static void expect(pen_status got, pen_status status, const char *sentence)
{
    assert_int_equal(got, status);
    assert_string_equal(pen_last_error(NULL), sentence);
}

/* ---- a member -------------------------------------------------------------------------------- */
static void *answer_later(void *user)
{
    member *m = user;
    ok(pen_reply(m->kept, PEN_OK, "later", 5, NULL));
    return NULL;
}

static void on_command(pen_ctx *ctx, pen_call *call, int head, const void *body, size_t size,
                       void *user)
{
    member *m = user;
    char text[256];
    m->n_run++;
    switch (head) {
    case ECHO:
        snprintf(text, sizeof text, "%d:%.*s", m->rank, (int)size, (const char *)body);
        ok(pen_reply(call, PEN_OK, text, strlen(text), NULL));
        break;
    case LATER:
        m->kept         = call;
        m->has_answerer = pthread_create(&m->answerer, NULL, answer_later, m) == 0;
        break;
    case NEVER: m->kept = call; break;
    case NESTED: /* a waiting call would wait for itself */
        m->nested = pen_command(ctx, (pen_node){PEN_WORKER, 0}, ECHO, NULL, 0, NULL, 0, NULL, NULL);
        ok(pen_reply(call, PEN_OK, NULL, 0, NULL));
        break;
    default: ok(pen_reply(call, PEN_NOT_FOUND, NULL, 0, NULL)); break;
    }
}

static void *join(void *user)
{
    member *m             = user;
    const char *const own = m->rank == 0 ? "rank=0" : "rank=1";
    char port[32];
    job *j = (job *)((char *)(m - m->rank) - offsetof(job, member));
    snprintf(port, sizeof port, "master_port=%s",
             strrchr(scheduler_address(j->scheduler), ':') + 1);
    const char *const settings[] = {
        own,  "world_size=2",       "servers=1", "master_addr=127.0.0.1",
        port, "scheduler=external", NULL};
    ok(pen_init(settings, &m->ctx));
    ok(pen_on_command(m->ctx, on_command, m));
    ok(pen_barrier(pen_world(m->ctx), NULL, NULL)); /* from here on both answer commands */
    return NULL;
}

static void *leave(void *user)
{
    member *m = user;
    ok(pen_finalize(m->ctx));
    return NULL;
}

static void both(job *j, void *(*fn)(void *))
{
    pthread_t thread[RANKS];
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, fn, &j->member[r]), 0);
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
}

static int begin(void **state)
{
    job *j = calloc(1, sizeof *j);
    pen_error why;
    scheduler_settings s;
    server_settings o;
    config_defaults(scheduler_settings_rows, &s);
    config_defaults(server_settings_rows, &o);
    s.port = 0;
    pen_log_set(NULL, NULL, -1);
    if (scheduler_start(&s, &j->scheduler, &why) != PEN_OK) fail_msg("%s", why.text);
    snprintf(o.master_addr, sizeof o.master_addr, "%s", scheduler_address(j->scheduler));
    if (server_thread_start(&o, &j->server, &why) != PEN_OK) fail_msg("%s", why.text);
    for (int r = 0; r < RANKS; r++) j->member[r].rank = r;
    both(j, join);
    *state = j;
    return 0;
}

static int end(void **state)
{
    job *j = *state;
    for (int r = 0; r < RANKS; r++)
        if (j->member[r].has_answerer) pthread_join(j->member[r].answerer, NULL);
    both(j, leave);
    pen_error why;
    ok(server_thread_join(&j->server, &why));
    ok(scheduler_join(j->scheduler, &why));
    free(j);
    return 0;
}

static pen_status say(job *j, pen_node to, int head, const char *body, pen_bytes *replies, int cap)
{
    return pen_command(j->member[0].ctx, to, head, body, strlen(body), replies, cap, NULL, NULL);
}

static void is_reply(pen_bytes *reply, const char *text)
{
    assert_int_equal(reply->size, strlen(text));
    if (reply->size > 0) assert_memory_equal(reply->data, text, reply->size);
    pen_free(reply->data);
}

/* ---- with others ----------------------------------------------------------------------------- */
static void test_command_reaches_one_worker_and_brings_its_reply(void **state)
{
    job *j = *state;
    pen_bytes reply;
    ok(say(j, (pen_node){PEN_WORKER, 1}, ECHO, "hello", &reply, 1));
    is_reply(&reply, "1:hello");
    assert_int_equal(j->member[0].n_run, 0);
}

static void test_command_to_all_brings_the_replies_in_rank_order(void **state)
{
    job *j = *state;
    pen_bytes reply[3];
    pen_req req;
    pen_result result;
    ok(pen_command(j->member[1].ctx, (pen_node){PEN_WORKER, -1}, ECHO, "x", 1, reply, 3, NULL,
                   &req));
    ok(pen_wait(&req, &result));
    assert_int_equal(result.count, 2);
    is_reply(&reply[0], "0:x");
    is_reply(&reply[1], "1:x");
}

static void test_command_carries_as_much_as_fits_and_no_more(void **state)
{
    job *j      = *state;
    char *large = calloc(1, 65537);
    ok(pen_command(j->member[0].ctx, (pen_node){PEN_WORKER, 1}, ECHO, large, 65536, NULL, 0, NULL,
                   NULL));
    expect(pen_command(j->member[0].ctx, (pen_node){PEN_WORKER, 1}, ECHO, large, 65537, NULL, 0,
                       NULL, NULL),
           PEN_UNSUPPORTED,
           "pen_command: 65537 bytes are too many; a command carries at most 65536, because it "
           "goes through the scheduler");
    free(large);
}

static void test_command_may_be_answered_later_by_another_thread(void **state)
{
    job *j = *state;
    pen_bytes reply;
    ok(say(j, (pen_node){PEN_WORKER, 1}, LATER, "", &reply, 1));
    is_reply(&reply, "later");
}

static void test_command_many_are_each_carried_out_once(void **state)
{
    job *j = *state;
    enum { MANY = 100 };
    pen_req req[MANY];
    for (int i = 0; i < MANY; i++)
        ok(pen_command(j->member[0].ctx, (pen_node){PEN_WORKER, 1}, ECHO, NULL, 0, NULL, 0, NULL,
                       &req[i]));
    for (int i = 0; i < MANY; i++) ok(pen_wait(&req[i], NULL));
    assert_int_equal(j->member[1].n_run, MANY);
}

static void test_command_names_a_member_without_a_handler(void **state)
{
    job *j = *state;
    ok(pen_on_command(j->member[1].ctx, NULL, NULL));
    expect(say(j, (pen_node){PEN_WORKER, 1}, 7, "", NULL, 0), PEN_NOT_FOUND,
           "worker 1 has no handler for command 7");
    expect(say(j, (pen_node){PEN_WORKER, 0}, UNKNOWN, "", NULL, 0), PEN_NOT_FOUND,
           "worker 0 refused command 99: no such tensor, table, key, snapshot or file");
    expect(say(j, (pen_node){PEN_SERVER, -1}, 7, "", NULL, 0), PEN_NOT_FOUND,
           "server 0 has no handler for command 7");
    expect(say(j, (pen_node){PEN_SCHEDULER, 0}, 7, "", NULL, 0), PEN_NOT_FOUND,
           "the scheduler has no handler for command 7");
    expect(say(j, (pen_node){PEN_WORKER, 2}, 7, "", NULL, 0), PEN_NOT_FOUND,
           "pen_command: no worker 2; the job has 2");
}

static void test_command_ends_at_its_deadline_without_an_answer(void **state)
{
    job *j           = *state;
    const pen_opts o = {.deadline_ms = 100};
    pen_error why;
    pen_status status =
        pen_command(j->member[0].ctx, (pen_node){PEN_WORKER, 1}, NEVER, NULL, 0, NULL, 0, &o, NULL);
    assert_int_equal(status, PEN_TIMED_OUT);
    assert_non_null(strstr(pen_last_error(&why), "s for worker 1 to answer command 3"));
    assert_int_equal(why.rank, 1);
    while (atomic_load(&j->member[1].kept) == NULL) usleep(1000); /* late, but delivered */
    ok(pen_reply(j->member[1].kept, PEN_OK, NULL, 0, NULL));      /* too late; harmless */
}

static void test_command_from_a_callback_may_not_wait(void **state)
{
    job *j = *state;
    ok(say(j, (pen_node){PEN_WORKER, 1}, NESTED, "", NULL, 0));
    assert_int_equal(j->member[1].nested, PEN_WRONG_STATE);
}

static void test_command_checks_its_arguments(void **state)
{
    job *j = *state;
    pen_bytes reply;
    expect(say(j, (pen_node){0, 0}, 1, "", NULL, 0), PEN_INVALID_ARGUMENT,
           "pen_command: invalid role 0; expected PEN_WORKER, PEN_SERVER or PEN_SCHEDULER");
    expect(say(j, (pen_node){PEN_WORKER, -2}, 1, "", NULL, 0), PEN_INVALID_ARGUMENT,
           "pen_command: invalid rank -2; use -1 for all of that role");
    expect(say(j, (pen_node){PEN_WORKER, -1}, 1, "", &reply, 1), PEN_TOO_SMALL,
           "pen_command: cap is 1, but 2 replies will come");
    expect(
        pen_command(j->member[0].ctx, (pen_node){PEN_WORKER, 1}, 1, NULL, 5, NULL, 0, NULL, NULL),
        PEN_INVALID_ARGUMENT, "pen_command: data is NULL, but size is 5");
    expect(pen_reply(NULL, PEN_OK, NULL, 0, NULL), PEN_INVALID_ARGUMENT, "pen_reply: call is NULL");
}

/* ---- alone ----------------------------------------------------------------------------------- */
static void on_command_badly(pen_ctx *ctx, pen_call *call, int head, const void *body, size_t size,
                             void *user)
{
    member *m          = user;
    const uint32_t one = 1;
    (void)ctx, (void)head, (void)body, (void)size;
    expect(pen_reply(call, PEN_AGAIN, NULL, 0, NULL), PEN_INVALID_ARGUMENT,
           "pen_reply: invalid status 1; expected PEN_OK or an error");
    expect(pen_reply(call, PEN_OK, NULL, 0, &one), PEN_INVALID_ARGUMENT,
           "pen_reply: lens must be NULL; it is for tables");
    ok(pen_reply(call, PEN_OK, "a", 1, NULL));
    m->second = pen_reply(call, PEN_OK, "b", 1, NULL);
    assert_string_equal(pen_last_error(NULL), "pen_reply: command 5 was already answered");
}

static void test_command_of_a_program_alone_is_answered_by_itself(void **state)
{
    (void)state;
    member m = {.rank = 0};
    pen_bytes reply;
    const pen_opts o    = {.deadline_ms = 50};
    const pen_node self = {PEN_WORKER, 0}, all = {PEN_WORKER, -1};
    ok(pen_init(NULL, &m.ctx));
    expect(pen_command(m.ctx, self, 7, NULL, 0, NULL, 0, NULL, NULL), PEN_NOT_FOUND,
           "worker 0 has no handler for command 7");
    ok(pen_on_command(m.ctx, on_command, &m));
    ok(pen_command(m.ctx, all, ECHO, "hi", 2, &reply, 1, NULL, NULL));
    is_reply(&reply, "0:hi");
    ok(pen_command(m.ctx, self, LATER, NULL, 0, &reply, 1, NULL, NULL));
    is_reply(&reply, "later");
    pthread_join(m.answerer, NULL);
    expect(pen_command(m.ctx, self, NEVER, NULL, 0, NULL, 0, &o, NULL), PEN_TIMED_OUT,
           "worker 0 has not answered command 3");
    ok(pen_reply(m.kept, PEN_OK, "late", 4, NULL));
    expect(pen_command(m.ctx, (pen_node){PEN_SERVER, 0}, 7, NULL, 0, NULL, 0, NULL, NULL),
           PEN_NOT_FOUND, "pen_command: no server to send to: this worker is alone");
    ok(pen_on_command(m.ctx, on_command_badly, &m));
    ok(pen_command(m.ctx, self, 5, NULL, 0, &reply, 1, NULL, NULL));
    is_reply(&reply, "a");
    assert_int_equal(m.second, PEN_WRONG_STATE);
    ok(pen_finalize(m.ctx));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define JOB(test) cmocka_unit_test_setup_teardown(test, begin, end)
        JOB(test_command_reaches_one_worker_and_brings_its_reply),
        JOB(test_command_to_all_brings_the_replies_in_rank_order),
        JOB(test_command_carries_as_much_as_fits_and_no_more),
        JOB(test_command_may_be_answered_later_by_another_thread),
        JOB(test_command_many_are_each_carried_out_once),
        JOB(test_command_names_a_member_without_a_handler),
        JOB(test_command_ends_at_its_deadline_without_an_answer),
        JOB(test_command_from_a_callback_may_not_wait),
        JOB(test_command_checks_its_arguments),
        cmocka_unit_test(test_command_of_a_program_alone_is_answered_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
