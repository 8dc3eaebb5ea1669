/* unanswered_test.c - a request is sent until it is answered, and answered once. */
#include "common/base/why.h"
#include "worker/io/unanswered.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SENT_MAX = 1024 };

typedef struct {
    unanswered *requests;
    wire_control sent[SENT_MAX]; /* its target is gone */
    int n_sent, n_faulted, n_shrunk, n_ended;
    uint64_t now;
    uint64_t new_group;
    int64_t value;
    void *token;
    pen_status status;
    pen_error why;
    char text[640], body[64], data[3][64];
    uint32_t n_replies;
} world;

/* ---- actions --------------------------------------------------------------------------------- */
static void on_send(void *user, const wire_control *m)
{
    world *w = user;
    assert_true(w->n_sent < SENT_MAX);
    w->sent[w->n_sent++] = *m;
    if (m->kind == WIRE_COMMAND) memcpy(w->body, m->u.command.body, m->u.command.body_size);
}

static void keep(world *w, const pen_error *why)
{
    w->status = why != NULL ? why->status : PEN_OK;
    snprintf(w->text, sizeof w->text, "%s", why != NULL ? why->text : "");
}

static void on_faulted(void *user, uint64_t group, uint64_t call, const pen_error *why)
{
    (void)group, (void)call;
    world *w = user;
    w->n_faulted++;
    keep(w, why);
}

static void on_shrunk(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks,
                      uint32_t n, const pen_error *why)
{
    (void)group, (void)ranks, (void)n;
    world *w     = user;
    w->new_group = new_group;
    w->n_shrunk++;
    keep(w, why);
}

static void on_ended(void *user, void *token, const unanswered_answer *answer, const pen_error *why)
{
    world *w = user;
    assert_true((answer == NULL) == (why != NULL));
    w->n_ended++;
    w->token = token;
    keep(w, why);
    if (why != NULL) w->why = *why;
    w->n_replies = answer != NULL ? answer->n : 0;
    w->value     = answer != NULL ? answer->value : 0;
    for (uint32_t i = 0; i < w->n_replies; i++) {
        memset(w->data[i], 0, sizeof w->data[i]);
        if (answer->replies[i].size > 0)
            memcpy(w->data[i], answer->replies[i].data, answer->replies[i].size);
        free(answer->replies[i].data);
    }
}

/* ---- a world --------------------------------------------------------------------------------- */
static world *make_world(void)
{
    static const unanswered_actions actions = {on_send, on_faulted, on_shrunk, on_ended};
    world *w                                = calloc(1, sizeof *w);
    w->now                                  = 1000;
    w->requests                             = unanswered_create(&actions, w);
    assert_non_null(w->requests);
    return w;
}

static void drop_world(world *w)
{
    unanswered_destroy(w->requests);
    free(w);
}

static void pass(world *w, uint64_t ms)
{
    w->now += ms;
    unanswered_tick(w->requests, w->now);
}

/* This many are not answered. */
static int resend(world *w)
{
    w->n_sent = 0;
    pass(w, UNANSWERED_AGAIN_MS);
    return w->n_sent;
}

static void hear(world *w, wire_control m)
{
    unanswered_receive(w->requests, &m, w->now);
}

static wire_control stored(uint64_t id, pen_status status, const char *text, int64_t value)
{
    wire_control c    = {.kind = WIRE_STORED};
    c.u.stored.id     = id;
    c.u.stored.status = status;
    c.u.stored.text   = text;
    c.u.stored.value  = value;
    return c;
}

static void add(world *w, int64_t delta, void *token)
{
    const unanswered_change c = {.op = WIRE_STORE_ADD, .key = "tickets", .delta = delta};
    assert_int_equal(unanswered_kv(w->requests, &c, token, 0, w->now), PEN_OK);
}

static void get(world *w, void *token, uint64_t deadline_ms)
{
    const unanswered_change c = {.op = WIRE_STORE_GET, .key = "k"};
    assert_int_equal(unanswered_kv(w->requests, &c, token, deadline_ms, w->now), PEN_OK);
}

static void fault(world *w, uint64_t call, const pen_error *why)
{
    assert_int_equal(unanswered_fault(w->requests, 1, call, why, w->now), PEN_OK);
}

static void command(world *w, int32_t role, int32_t rank, uint32_t n, const char *body,
                    uint64_t deadline_ms)
{
    const unanswered_question q = {
        .role = role, .rank = rank, .head = 7, .n = n, .body = body, .size = strlen(body)};
    assert_int_equal(unanswered_command(w->requests, &q, w, deadline_ms, w->now), PEN_OK);
}

static void reply(world *w, uint64_t id, int32_t role, int32_t rank, pen_status status,
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
    hear(w, c);
}

/* ---- of collectives ---------------------------------------------------------------------------- */
static void a_fault_is_repeated_until_all_are_told(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    why_set(&why, PEN_TIMED_OUT, "it took too long");
    fault(w, 418, &why);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(resend(w), 1);
    assert_string_equal(w->sent[0].u.fault.why.text, "it took too long");
    wire_control c  = {.kind = WIRE_FAULTED};
    c.u.fault.group = 1;
    c.u.fault.call  = 417;
    why_set(&c.u.fault.why, PEN_CORRUPT, "what another said first");
    hear(w, c); /* of another call: passed on, and ours is still open */
    assert_int_equal(w->n_faulted, 1);
    assert_int_equal(resend(w), 1);
    c.u.fault.call = 418;
    hear(w, c);
    assert_int_equal(w->n_faulted, 2);
    assert_string_equal(w->text, "what another said first");
    assert_int_equal(resend(w), 0);
    drop_world(w);
}

static void the_oldest_of_too_many_faults_is_forgotten(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    why_set(&why, PEN_CORRUPT, "x");
    for (uint64_t call = 1; call <= 2 * UNANSWERED_FAULTS_MAX; call++) fault(w, call, &why);
    assert_int_equal(resend(w), UNANSWERED_FAULTS_MAX);
    assert_int_equal(w->sent[0].u.fault.call, UNANSWERED_FAULTS_MAX + 1);
    drop_world(w);
}

static void an_agreement_is_requested_with_the_newest_list_and_reported_once(void **state)
{
    (void)state;
    world *w              = make_world();
    const int32_t ranks[] = {0, 1, 2};
    assert_int_equal(unanswered_shrink(w->requests, 1, ranks, 3, w->now), PEN_OK);
    assert_int_equal(unanswered_shrink(w->requests, 1, ranks, 2, w->now), PEN_OK);
    assert_int_equal(resend(w), 1);
    assert_int_equal(w->sent[0].u.shrink.n_ranks, 2);
    wire_control c       = {.kind = WIRE_SHRUNK};
    c.u.shrunk.group     = 1;
    c.u.shrunk.new_group = 77;
    c.u.shrunk.text      = "";
    hear(w, c);
    hear(w, c);
    assert_int_equal(w->n_shrunk, 1);
    assert_int_equal(w->new_group, 77);
    assert_int_equal(resend(w), 0);
    drop_world(w);
}

/* ---- the key-value store ----------------------------------------------------------------------- */
static void an_answer_ends_its_own_question_once(void **state)
{
    (void)state;
    world *w = make_world();
    int a, b;
    add(w, 1, &a);
    add(w, 2, &b);
    hear(w, stored(w->sent[1].u.store.id, PEN_OK, "", 3));
    assert_ptr_equal(w->token, &b);
    assert_int_equal(w->value, 3);
    hear(w, stored(w->sent[1].u.store.id, PEN_OK, "", 3));
    assert_int_equal(w->n_ended, 1);
    assert_int_equal(resend(w), 1); /* the other one; all below it are done */
    assert_int_equal(w->sent[0].u.store.done_below, 1);
    hear(w, stored(1, PEN_MISMATCH, "'tickets' holds 5 bytes, a counter has 8", 0));
    assert_ptr_equal(w->token, &a);
    assert_string_equal(w->text, "pen_store_add: 'tickets' holds 5 bytes, a counter has 8");
    add(w, 1, &a);
    assert_int_equal(w->sent[w->n_sent - 1].u.store.done_below, 3);
    drop_world(w);
}

static void changes_wait_until_they_fit_into_the_window_and_gets_do_not(void **state)
{
    (void)state;
    world *w = make_world();
    int token;
    for (int i = 0; i < UNANSWERED_CHANGES_MAX + 10; i++) add(w, 1, &token);
    assert_int_equal(w->n_sent, UNANSWERED_CHANGES_MAX);
    get(w, &token, 0);
    assert_int_equal(w->n_sent, UNANSWERED_CHANGES_MAX + 1);
    hear(w, stored(2, PEN_OK, "", 1)); /* not the oldest: the window does not move */
    assert_int_equal(w->n_sent, UNANSWERED_CHANGES_MAX + 1);
    hear(w, stored(1, PEN_OK, "", 1));
    assert_int_equal(w->n_sent, UNANSWERED_CHANGES_MAX + 3);
    assert_int_equal(w->sent[w->n_sent - 1].u.store.id, UNANSWERED_CHANGES_MAX + 2);
    drop_world(w);
}

static void a_get_of_a_key_never_set_times_out_with_a_sentence(void **state)
{
    (void)state;
    world *w = make_world();
    int token;
    get(w, &token, w->now + 1500);
    assert_int_equal(unanswered_due(w->requests), w->now + UNANSWERED_AGAIN_MS);
    pass(w, UNANSWERED_AGAIN_MS);
    assert_int_equal(unanswered_due(w->requests), w->now + 500);
    pass(w, 499);
    assert_int_equal(w->n_ended, 0);
    pass(w, 1);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_string_equal(w->text, "pen_store_get: no value for 'k' within 1.5 s");
    assert_true(unanswered_due(w->requests) == UINT64_MAX);
    drop_world(w);
}

/* ---- commands -------------------------------------------------------------------------------- */
static void a_command_accepts_a_reply_from_the_commanded_member_only(void **state)
{
    (void)state;
    world *w = make_world();
    command(w, PEN_WORKER, 1, 1, "hello", 0);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].u.command.rank, 1);
    assert_int_equal(w->sent[0].u.command.head, 7);
    assert_string_equal(w->body, "hello");
    reply(w, 1, PEN_WORKER, 2, PEN_OK, "not I"); /* from a member that was not asked */
    reply(w, 1, PEN_SERVER, 1, PEN_OK, "not I");
    reply(w, 2, PEN_WORKER, 1, PEN_OK, "not this");
    assert_int_equal(w->n_ended, 0);
    reply(w, 1, PEN_WORKER, 1, PEN_OK, "hi");
    assert_int_equal(w->n_ended, 1);
    assert_int_equal(w->status, PEN_OK);
    assert_string_equal(w->data[0], "hi");
    assert_true(unanswered_due(w->requests) == UINT64_MAX);
    drop_world(w);
}

static void a_command_to_all_has_its_replies_in_rank_order(void **state)
{
    (void)state;
    world *w = make_world();
    command(w, PEN_WORKER, -1, 3, "", 0);
    assert_int_equal(w->n_sent, 1); /* the scheduler makes three of it */
    reply(w, 1, PEN_WORKER, 2, PEN_OK, "c");
    reply(w, 1, PEN_WORKER, 0, PEN_OK, "a");
    reply(w, 1, PEN_WORKER, 0, PEN_OK, "again");
    reply(w, 1, PEN_WORKER, 3, PEN_OK, "nobody");
    assert_int_equal(w->n_ended, 0);
    reply(w, 1, PEN_WORKER, 1, PEN_OK, "");
    assert_int_equal(w->n_replies, 3);
    assert_string_equal(w->data[0], "a");
    assert_string_equal(w->data[1], "");
    assert_string_equal(w->data[2], "c");
    drop_world(w);
}

static void only_members_without_an_answer_are_commanded_again(void **state)
{
    (void)state;
    world *w = make_world();
    command(w, PEN_WORKER, -1, 3, "x", 0);
    assert_true(unanswered_due(w->requests) == w->now + UNANSWERED_AGAIN_MS);
    reply(w, 1, PEN_WORKER, 1, PEN_OK, "b");
    pass(w, UNANSWERED_AGAIN_MS - 1);
    assert_int_equal(w->n_sent, 1);
    pass(w, 1);
    assert_int_equal(w->n_sent, 3);
    assert_int_equal(w->sent[1].u.command.rank, 0);
    assert_int_equal(w->sent[2].u.command.rank, 2);
    assert_int_equal(w->sent[2].u.command.id, 1);
    drop_world(w);
}

static void a_command_ends_with_the_refusal_of_the_lowest_rank(void **state)
{
    (void)state;
    world *w = make_world();
    command(w, PEN_SERVER, -1, 2, "x", 0);
    reply(w, 1, PEN_SERVER, 1, PEN_PEER_LOST, "server 1 (b) is gone");
    reply(w, 1, PEN_SERVER, 0, PEN_NOT_FOUND, "server 0 has no handler for command 7");
    assert_int_equal(w->why.status, PEN_NOT_FOUND);
    assert_string_equal(w->why.text, "server 0 has no handler for command 7");
    assert_int_equal(w->why.role, PEN_SERVER);
    assert_int_equal(w->why.rank, 0);
    drop_world(w);
}

static void a_command_that_times_out_names_the_members_without_an_answer(void **state)
{
    (void)state;
    world *w = make_world();
    command(w, PEN_WORKER, -1, 3, "x", w->now + 2500);
    reply(w, 1, PEN_WORKER, 0, PEN_OK, "a");
    pass(w, 2499);
    assert_int_equal(w->n_ended, 0);
    pass(w, 1);
    assert_string_equal(w->why.text, "waited 2.5 s for worker 1 and 1 more to answer command 7");
    assert_int_equal(w->why.status, PEN_TIMED_OUT);
    assert_int_equal(w->why.missing_n, 2);
    assert_int_equal(w->why.missing[1], 2);
    drop_world(w);
}

static void eight_commands_are_in_flight_at_a_time_and_report_what_is_done(void **state)
{
    (void)state;
    world *w = make_world();
    for (int i = 0; i < 10; i++) command(w, PEN_WORKER, 1, 1, "x", 0);
    assert_int_equal(w->n_sent, UNANSWERED_COMMANDS_MAX);
    assert_int_equal(w->sent[7].u.command.done_below, 1);
    reply(w, 2, PEN_WORKER, 1, PEN_OK, "");
    assert_int_equal(w->n_sent, 9);
    assert_int_equal(w->sent[8].u.command.id, 9);
    assert_int_equal(w->sent[8].u.command.done_below, 1); /* the first is not answered yet */
    reply(w, 1, PEN_WORKER, 1, PEN_OK, "");
    assert_int_equal(w->sent[9].u.command.id, 10);
    assert_int_equal(w->sent[9].u.command.done_below, 3);
    drop_world(w);
}

/* ---- all --------------------------------------------------------------------------------------- */
static void unanswered_requests_are_sent_again_after_a_welcome(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    int token;
    why_set(&why, PEN_TIMED_OUT, "too long");
    fault(w, 2, &why);
    add(w, 1, &token);
    assert_int_equal(w->n_sent, 2);
    hear(w, (wire_control){.kind = WIRE_WELCOME});
    assert_int_equal(w->n_sent, 4);
    hear(w, stored(1, PEN_OK, "", 1));
    assert_int_equal(w->n_ended, 1);
    drop_world(w);
}

static void a_failure_ends_pending_waits(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    int token;
    add(w, 1, &token);
    command(w, PEN_WORKER, 2, 1, "x", 0);
    why_set(&why, PEN_PEER_LOST, "worker 1 (devbox) is gone");
    fault(w, 1, &why);
    unanswered_fail(w->requests, &why);
    assert_int_equal(w->n_ended, 2);
    assert_string_equal(w->text, "worker 1 (devbox) is gone");
    assert_int_equal(resend(w), 0);
    hear(w, (wire_control){.kind = WIRE_FAULTED});
    assert_int_equal(w->n_faulted, 0);
    drop_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_is_repeated_until_all_are_told),
        cmocka_unit_test(the_oldest_of_too_many_faults_is_forgotten),
        cmocka_unit_test(an_agreement_is_requested_with_the_newest_list_and_reported_once),
        cmocka_unit_test(an_answer_ends_its_own_question_once),
        cmocka_unit_test(changes_wait_until_they_fit_into_the_window_and_gets_do_not),
        cmocka_unit_test(a_get_of_a_key_never_set_times_out_with_a_sentence),
        cmocka_unit_test(a_command_accepts_a_reply_from_the_commanded_member_only),
        cmocka_unit_test(a_command_to_all_has_its_replies_in_rank_order),
        cmocka_unit_test(only_members_without_an_answer_are_commanded_again),
        cmocka_unit_test(a_command_ends_with_the_refusal_of_the_lowest_rank),
        cmocka_unit_test(a_command_that_times_out_names_the_members_without_an_answer),
        cmocka_unit_test(eight_commands_are_in_flight_at_a_time_and_report_what_is_done),
        cmocka_unit_test(unanswered_requests_are_sent_again_after_a_welcome),
        cmocka_unit_test(a_failure_ends_pending_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
