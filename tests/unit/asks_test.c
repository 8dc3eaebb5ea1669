/* asks_test.c - questions that are said until they are answered, and answered once. */
#include "common/why.h"
#include "worker/asks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SENT_MAX = 1024 };

typedef struct {
    asks *asks;
    wire_control sent[SENT_MAX]; /* what it points to is gone */
    int n_sent, n_faulted, n_shrunk, n_stored;
    uint64_t new_group;
    int64_t value;
    void *token;
    pen_status status;
    char text[640], data[64];
} world;

/* ---- actions --------------------------------------------------------------------------------- */
static void on_send(void *user, wire_control *m)
{
    world *w = user;
    assert_true(w->n_sent < SENT_MAX);
    w->sent[w->n_sent++] = *m;
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

static void on_stored(void *user, void *token, const void *data, size_t size, int64_t value,
                      const pen_error *why)
{
    world *w = user;
    w->n_stored++;
    w->token = token;
    w->value = value;
    if (size > 0) memcpy(w->data, data, size);
    keep(w, why);
}

static world *make_world(void)
{
    static const asks_actions actions = {on_send, on_faulted, on_shrunk, on_stored};
    world *w                          = calloc(1, sizeof *w);
    w->asks                           = asks_create(&actions, w);
    assert_non_null(w->asks);
    return w;
}

static void drop_world(world *w)
{
    asks_destroy(w->asks);
    free(w);
}

static int say_again(world *w)
{
    w->n_sent = 0;
    asks_say(w->asks);
    return w->n_sent;
}

static void hear(world *w, wire_control m)
{
    asks_receive(w->asks, &m);
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
    const asks_change c = {.op = WIRE_STORE_ADD, .key = "tickets", .delta = delta};
    assert_int_equal(asks_store(w->asks, &c, token, 0), PEN_OK);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static void a_fault_is_said_until_all_were_told(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    why_set(&why, PEN_TIMED_OUT, "it took too long");
    assert_int_equal(asks_fault(w->asks, 1, 418, &why), PEN_OK);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(say_again(w), 1);
    assert_string_equal(w->sent[0].u.fault.why.text, "it took too long");
    wire_control c  = {.kind = WIRE_FAULTED};
    c.u.fault.group = 1;
    c.u.fault.call  = 417;
    why_set(&c.u.fault.why, PEN_CORRUPT, "what another said first");
    hear(w, c); /* of another call: told on, and ours is still open */
    assert_int_equal(w->n_faulted, 1);
    assert_int_equal(say_again(w), 1);
    c.u.fault.call = 418;
    hear(w, c);
    assert_int_equal(w->n_faulted, 2);
    assert_string_equal(w->text, "what another said first");
    assert_int_equal(say_again(w), 0);
    drop_world(w);
}

static void the_oldest_of_too_many_faults_is_forgotten(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    why_set(&why, PEN_CORRUPT, "x");
    for (uint64_t call = 1; call <= 2 * ASKS_FAULTS_MAX; call++)
        assert_int_equal(asks_fault(w->asks, 1, call, &why), PEN_OK);
    assert_int_equal(say_again(w), ASKS_FAULTS_MAX);
    assert_int_equal(w->sent[0].u.fault.call, ASKS_FAULTS_MAX + 1);
    drop_world(w);
}

static void an_agreement_is_asked_for_with_the_newest_list_and_told_once(void **state)
{
    (void)state;
    world *w              = make_world();
    const int32_t ranks[] = {0, 1, 2};
    assert_int_equal(asks_shrink(w->asks, 1, ranks, 3), PEN_OK);
    assert_int_equal(asks_shrink(w->asks, 1, ranks, 2), PEN_OK);
    assert_int_equal(say_again(w), 1);
    assert_int_equal(w->sent[0].u.shrink.n_ranks, 2);
    wire_control c       = {.kind = WIRE_SHRUNK};
    c.u.shrunk.group     = 1;
    c.u.shrunk.new_group = 77;
    c.u.shrunk.text      = "";
    hear(w, c);
    hear(w, c);
    assert_int_equal(w->n_shrunk, 1);
    assert_int_equal(w->new_group, 77);
    assert_int_equal(say_again(w), 0);
    drop_world(w);
}

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
    assert_int_equal(w->n_stored, 1);
    assert_int_equal(say_again(w), 1); /* the other one, which all below it are done for */
    assert_int_equal(w->sent[0].u.store.done_below, 1);
    hear(w, stored(1, PEN_MISMATCH, "'tickets' holds 5 bytes, and a counter has 8", 0));
    assert_ptr_equal(w->token, &a);
    assert_string_equal(w->text, "pen_store_add: 'tickets' holds 5 bytes, and a counter has 8");
    add(w, 1, &a);
    assert_int_equal(w->sent[w->n_sent - 1].u.store.done_below, 3);
    drop_world(w);
}

static void changes_wait_until_they_fit_into_the_window_and_gets_do_not(void **state)
{
    (void)state;
    world *w = make_world();
    int token;
    for (int i = 0; i < ASKS_WINDOW + 10; i++) add(w, 1, &token);
    assert_int_equal(w->n_sent, ASKS_WINDOW);
    const asks_change get = {.op = WIRE_STORE_GET, .key = "k"};
    assert_int_equal(asks_store(w->asks, &get, &token, 0), PEN_OK);
    assert_int_equal(w->n_sent, ASKS_WINDOW + 1);
    hear(w, stored(2, PEN_OK, "", 1)); /* not the oldest: the window does not move */
    assert_int_equal(w->n_sent, ASKS_WINDOW + 1);
    hear(w, stored(1, PEN_OK, "", 1));
    assert_int_equal(w->n_sent, ASKS_WINDOW + 3);
    assert_int_equal(w->sent[w->n_sent - 1].u.store.id, ASKS_WINDOW + 2);
    drop_world(w);
}

static void a_get_that_nobody_sets_times_out_and_says_so(void **state)
{
    (void)state;
    world *w              = make_world();
    const asks_change get = {.op = WIRE_STORE_GET, .key = "k", .deadline_ms = 2000};
    int token;
    assert_int_equal(asks_store(w->asks, &get, &token, 500), PEN_OK);
    assert_int_equal(asks_due(w->asks), 2000);
    asks_tick(w->asks, 1999);
    assert_int_equal(w->n_stored, 0);
    asks_tick(w->asks, 2000);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_string_equal(w->text, "pen_store_get: nobody has set 'k' within 1.5 s");
    assert_true(asks_due(w->asks) == UINT64_MAX);
    drop_world(w);
}

static void a_failure_ends_what_somebody_waits_for(void **state)
{
    (void)state;
    world *w = make_world();
    pen_error why;
    int token;
    add(w, 1, &token);
    why_set(&why, PEN_PEER_LOST, "worker 1 is gone");
    assert_int_equal(asks_fault(w->asks, 1, 1, &why), PEN_OK);
    asks_fail(w->asks, &why);
    assert_int_equal(w->n_stored, 1);
    assert_string_equal(w->text, "worker 1 is gone");
    assert_int_equal(say_again(w), 0);
    drop_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_is_said_until_all_were_told),
        cmocka_unit_test(the_oldest_of_too_many_faults_is_forgotten),
        cmocka_unit_test(an_agreement_is_asked_for_with_the_newest_list_and_told_once),
        cmocka_unit_test(an_answer_ends_its_own_question_once),
        cmocka_unit_test(changes_wait_until_they_fit_into_the_window_and_gets_do_not),
        cmocka_unit_test(a_get_that_nobody_sets_times_out_and_says_so),
        cmocka_unit_test(a_failure_ends_what_somebody_waits_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
