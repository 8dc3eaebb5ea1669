/* calls_test.c - commands asked and answered, by hand: two ends, and a network that may lose and
 * repeat. */
#include "common/why.h"
#include "worker/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SENT_MAX = 64, ME = 700 };

typedef struct {
    wire_control_kind kind;
    uint64_t id, asker, done_below;
    int32_t role, rank, head;
    pen_status status;
    char text[256], data[64];
    size_t size;
} sent;

typedef struct {
    calls *calls;
    sent sent[SENT_MAX];
    int n_sent, n_run, n_ended;
    bool has_handler;
    pen_call *call;
    char body[64];
    void *token;
    pen_error why;
    bool failed;
    uint32_t n_replies;
    char reply[4][64];
    uint64_t now;
} end;

/* ---- actions --------------------------------------------------------------------------------- */
static void copy(char *to, size_t room, const void *from, size_t size)
{
    assert_true(size < room);
    if (size > 0) memcpy(to, from, size);
    to[size] = '\0';
}

static void on_send(void *user, const wire_control *m)
{
    end *e = user;
    assert_true(e->n_sent < SENT_MAX);
    sent *s = &e->sent[e->n_sent++];
    *s      = (sent){.kind = m->kind};
    if (m->kind == WIRE_COMMAND) {
        s->id = m->u.command.id, s->done_below = m->u.command.done_below;
        s->role = m->u.command.role, s->rank = m->u.command.rank, s->head = m->u.command.head;
        s->size = m->u.command.body_size;
        copy(s->data, sizeof s->data, m->u.command.body, s->size);
    } else {
        assert_int_equal(m->kind, WIRE_REPLY);
        s->id = m->u.reply.id, s->asker = m->u.reply.asker;
        s->role = m->u.reply.role, s->rank = m->u.reply.rank, s->status = m->u.reply.status;
        s->size = m->u.reply.data_size;
        copy(s->data, sizeof s->data, m->u.reply.data, s->size);
        snprintf(s->text, sizeof s->text, "%s", m->u.reply.text);
    }
}

static bool on_run(void *user, pen_call *call, const void *body, size_t size)
{
    end *e = user;
    if (!e->has_handler) return false;
    e->n_run++;
    e->call = call;
    copy(e->body, sizeof e->body, body, size);
    return true;
}

static void on_ended(void *user, void *token, const pen_bytes *replies, uint32_t n,
                     const pen_error *why)
{
    end *e   = user;
    e->token = token;
    e->n_ended++;
    e->failed    = why != NULL;
    e->n_replies = n;
    if (why != NULL) e->why = *why;
    for (uint32_t i = 0; i < n; i++) {
        copy(e->reply[i], sizeof e->reply[i], replies[i].data, replies[i].size);
        free(replies[i].data);
    }
}

static void open_end(end *e, int32_t rank)
{
    static const calls_actions actions = {on_send, on_run, on_ended};
    *e                                 = (end){.now = 1000, .has_handler = true};
    e->calls                           = calls_create(rank, &actions, e);
    assert_non_null(e->calls);
}

static void ask(end *e, int32_t role, int32_t rank, uint32_t n, const char *body, uint64_t deadline)
{
    const calls_question q = {.role        = role,
                              .rank        = rank,
                              .head        = 7,
                              .n           = n,
                              .body        = body,
                              .size        = strlen(body),
                              .deadline_ms = deadline};
    assert_int_equal(calls_ask(e->calls, &q, e, e->now), PEN_OK);
}

static void tick(end *e, uint64_t ms)
{
    e->now += ms;
    calls_tick(e->calls, e->now);
}

static void hear_reply(end *e, uint64_t id, int32_t role, int32_t rank, pen_status status,
                       const char *text)
{
    const bool is_ok     = status == PEN_OK;
    const wire_control c = {.kind    = WIRE_REPLY,
                            .u.reply = {.id        = id,
                                        .role      = role,
                                        .rank      = rank,
                                        .status    = status,
                                        .text      = is_ok ? "" : text,
                                        .data      = text,
                                        .data_size = is_ok ? strlen(text) : 0}};
    calls_hear(e->calls, &c, e->now);
}

static void hear_command(end *e, uint64_t asker, uint64_t id, uint64_t done_below, const char *body)
{
    const wire_control c = {.kind      = WIRE_COMMAND,
                            .u.command = {.id         = id,
                                          .asker      = asker,
                                          .role       = PEN_WORKER,
                                          .rank       = 3,
                                          .head       = 7,
                                          .done_below = done_below,
                                          .body       = body,
                                          .body_size  = strlen(body)}};
    calls_hear(e->calls, &c, e->now);
}

static void answer(end *e, pen_call *call, pen_status status, const char *text)
{
    assert_false(atomic_exchange(&call->is_answered, true));
    call->status = status;
    call->data   = strdup(text);
    call->size   = strlen(text);
    calls_answer(e->calls, call);
}

/* ---- asking ---------------------------------------------------------------------------------- */
static void test_calls_deliver_the_reply_of_one_rank(void **state)
{
    (void)state;
    end e;
    open_end(&e, 0);
    ask(&e, PEN_WORKER, 1, 1, "hello", 0);
    assert_int_equal(e.n_sent, 1);
    assert_int_equal(e.sent[0].rank, 1);
    assert_int_equal(e.sent[0].head, 7);
    assert_string_equal(e.sent[0].data, "hello");
    hear_reply(&e, 1, PEN_WORKER, 2, PEN_OK, "not I"); /* of nobody who was asked */
    hear_reply(&e, 1, PEN_SERVER, 1, PEN_OK, "not I");
    hear_reply(&e, 2, PEN_WORKER, 1, PEN_OK, "not this");
    assert_int_equal(e.n_ended, 0);
    hear_reply(&e, 1, PEN_WORKER, 1, PEN_OK, "hi");
    assert_int_equal(e.n_ended, 1);
    assert_false(e.failed);
    assert_string_equal(e.reply[0], "hi");
    assert_true(calls_due(e.calls) == UINT64_MAX);
    calls_destroy(e.calls);
}

static void test_calls_give_the_replies_of_all_in_rank_order(void **state)
{
    (void)state;
    end e;
    open_end(&e, 0);
    ask(&e, PEN_WORKER, -1, 3, "", 0);
    assert_int_equal(e.n_sent, 1); /* the scheduler makes three of it */
    hear_reply(&e, 1, PEN_WORKER, 2, PEN_OK, "c");
    hear_reply(&e, 1, PEN_WORKER, 0, PEN_OK, "a");
    hear_reply(&e, 1, PEN_WORKER, 0, PEN_OK, "again");
    assert_int_equal(e.n_ended, 0);
    hear_reply(&e, 1, PEN_WORKER, 1, PEN_OK, "");
    assert_int_equal(e.n_replies, 3);
    assert_string_equal(e.reply[0], "a");
    assert_string_equal(e.reply[1], "");
    assert_string_equal(e.reply[2], "c");
    calls_destroy(e.calls);
}

static void test_calls_ask_again_only_those_who_have_not_answered(void **state)
{
    (void)state;
    end e;
    open_end(&e, 0);
    ask(&e, PEN_WORKER, -1, 3, "x", 0);
    assert_true(calls_due(e.calls) == e.now + 1000);
    hear_reply(&e, 1, PEN_WORKER, 1, PEN_OK, "b");
    tick(&e, 999);
    assert_int_equal(e.n_sent, 1);
    tick(&e, 1);
    assert_int_equal(e.n_sent, 3);
    assert_int_equal(e.sent[1].rank, 0);
    assert_int_equal(e.sent[2].rank, 2);
    assert_int_equal(e.sent[2].id, 1);
    calls_destroy(e.calls);
}

static void test_calls_end_with_the_refusal_of_the_lowest_rank(void **state)
{
    (void)state;
    end e;
    open_end(&e, 0);
    ask(&e, PEN_SERVER, -1, 2, "x", 0);
    hear_reply(&e, 1, PEN_SERVER, 1, PEN_PEER_LOST, "server 1 (b) is gone");
    hear_reply(&e, 1, PEN_SERVER, 0, PEN_NOT_FOUND, "server 0 has no handler for command 7");
    assert_true(e.failed);
    assert_int_equal(e.why.status, PEN_NOT_FOUND);
    assert_string_equal(e.why.text, "server 0 has no handler for command 7");
    assert_int_equal(e.why.role, PEN_SERVER);
    assert_int_equal(e.why.rank, 0);
    calls_destroy(e.calls);
}

static void test_calls_time_out_naming_who_has_not_answered(void **state)
{
    (void)state;
    end e;
    open_end(&e, 0);
    ask(&e, PEN_WORKER, -1, 3, "x", e.now + 2500);
    hear_reply(&e, 1, PEN_WORKER, 0, PEN_OK, "a");
    tick(&e, 2499);
    assert_int_equal(e.n_ended, 0);
    tick(&e, 1);
    assert_string_equal(e.why.text, "waited 2.5 s for worker 1 and 1 more to answer command 7");
    assert_int_equal(e.why.status, PEN_TIMED_OUT);
    assert_int_equal(e.why.missing_n, 2);
    assert_int_equal(e.why.missing[1], 2);
    calls_destroy(e.calls);
}

static void test_calls_send_eight_at_a_time_and_say_what_is_done(void **state)
{
    (void)state;
    end e;
    open_end(&e, 0);
    for (int i = 0; i < 10; i++) ask(&e, PEN_WORKER, 1, 1, "x", 0);
    assert_int_equal(e.n_sent, CALLS_AT_ONCE);
    assert_int_equal(e.sent[7].done_below, 1);
    hear_reply(&e, 2, PEN_WORKER, 1, PEN_OK, "");
    assert_int_equal(e.n_sent, 9);
    assert_int_equal(e.sent[8].id, 9);
    assert_int_equal(e.sent[8].done_below, 1); /* the first is not answered yet */
    hear_reply(&e, 1, PEN_WORKER, 1, PEN_OK, "");
    assert_int_equal(e.sent[9].id, 10);
    assert_int_equal(e.sent[9].done_below, 3);
    calls_destroy(e.calls);
}

static void test_calls_end_all_with_the_failure_of_the_job(void **state)
{
    (void)state;
    end e;
    pen_error why;
    open_end(&e, 0);
    ask(&e, PEN_WORKER, 1, 1, "x", 0);
    ask(&e, PEN_WORKER, 2, 1, "x", 0);
    why_set(&why, PEN_PEER_LOST, "worker 1 (devbox) is gone");
    calls_fail(e.calls, &why);
    assert_int_equal(e.n_ended, 2);
    assert_string_equal(e.why.text, "worker 1 (devbox) is gone");
    hear_command(&e, ME, 1, 1, "late");
    assert_int_equal(e.n_run, 0);
    calls_destroy(e.calls);
}

/* ---- answering ------------------------------------------------------------------------------- */
static void test_calls_run_a_command_once_and_answer_repeats_from_memory(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 5, 5, "do");
    hear_command(&e, ME, 5, 5, "do"); /* while it is being thought about */
    assert_int_equal(e.n_run, 1);
    assert_int_equal(e.n_sent, 0);
    assert_string_equal(e.body, "do");
    answer(&e, e.call, PEN_OK, "done");
    hear_command(&e, ME, 5, 5, "do");
    assert_int_equal(e.n_run, 1);
    assert_int_equal(e.n_sent, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(e.sent[i].data, "done");
        assert_int_equal(e.sent[i].asker, ME);
        assert_int_equal(e.sent[i].id, 5);
        assert_int_equal(e.sent[i].rank, 3);
    }
    hear_command(&e, ME + 1, 5, 5, "of another"); /* the same number of somebody else */
    assert_int_equal(e.n_run, 2);
    calls_destroy(e.calls);
}

static void test_calls_do_not_run_what_its_asker_is_done_with(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "a");
    answer(&e, e.call, PEN_OK, "A");
    hear_command(&e, ME, 2, 2, "b"); /* forgets the first */
    hear_command(&e, ME, 1, 1, "a"); /* a straggler */
    assert_int_equal(e.n_run, 2);
    assert_int_equal(e.n_sent, 1);
    calls_destroy(e.calls);
}

static void test_calls_take_an_answer_that_nobody_waits_for_any_more(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "a");
    pen_call *slow = e.call;
    hear_command(&e, ME, 2, 2, "b"); /* the asker's deadline has passed */
    answer(&e, slow, PEN_OK, "A");
    assert_int_equal(e.n_sent, 0);
    answer(&e, e.call, PEN_OK, "B");
    assert_string_equal(e.sent[0].data, "B");
    calls_destroy(e.calls);
}

static void test_calls_without_a_function_say_so(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    e.has_handler = false;
    hear_command(&e, ME, 1, 1, "a");
    assert_int_equal(e.sent[0].status, PEN_NOT_FOUND);
    assert_string_equal(e.sent[0].text, "worker 1 has no handler for command 7");
    calls_destroy(e.calls);
}

static void test_calls_send_a_refusal_without_its_data(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "a");
    answer(&e, e.call, PEN_UNSUPPORTED, "bytes");
    assert_int_equal(e.sent[0].status, PEN_UNSUPPORTED);
    assert_int_equal(e.sent[0].size, 0);
    assert_string_equal(e.sent[0].text,
                        "worker 1 refused command 7: not possible with this build, device or mode");
    calls_destroy(e.calls);
}

static void test_calls_bound_what_one_asker_can_leave_behind(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    for (uint64_t id = 1; id <= 200; id++) hear_command(&e, ME, id, 1, "a");
    assert_int_equal(e.n_run, 64);
    hear_command(&e, ME + 1, 1, 1, "a"); /* of somebody else */
    assert_int_equal(e.n_run, 65);
    calls_destroy(e.calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_deliver_the_reply_of_one_rank),
        cmocka_unit_test(test_calls_give_the_replies_of_all_in_rank_order),
        cmocka_unit_test(test_calls_ask_again_only_those_who_have_not_answered),
        cmocka_unit_test(test_calls_end_with_the_refusal_of_the_lowest_rank),
        cmocka_unit_test(test_calls_time_out_naming_who_has_not_answered),
        cmocka_unit_test(test_calls_send_eight_at_a_time_and_say_what_is_done),
        cmocka_unit_test(test_calls_end_all_with_the_failure_of_the_job),
        cmocka_unit_test(test_calls_run_a_command_once_and_answer_repeats_from_memory),
        cmocka_unit_test(test_calls_do_not_run_what_its_asker_is_done_with),
        cmocka_unit_test(test_calls_take_an_answer_that_nobody_waits_for_any_more),
        cmocka_unit_test(test_calls_without_a_function_say_so),
        cmocka_unit_test(test_calls_send_a_refusal_without_its_data),
        cmocka_unit_test(test_calls_bound_what_one_asker_can_leave_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
