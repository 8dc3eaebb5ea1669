/* ps_client_wait_test.c - the ps client: deadlines, and which members are missing. */
#include "ps_client_world.h"
#include "common/base/why.h"
#include "worker/ps/ps_client_test.h"

/* ---- deadlines ------------------------------------------------------------------------------- */
static void answer_inquiry(world *w, int at, const int32_t *ranks, uint32_t n)
{
    answer_inquiry_of(w, 418, at, ranks, n);
}

static int find_sent(const world *w, wire_kind kind, int from)
{
    for (int i = from; i < w->n_sent; i++)
        if (w->sent[i].kind == kind) return i;
    return -1;
}

static void test_ps_client_warns_and_times_out_with_the_name_of_the_missing_rank(void **state)
{
    (void)state;
    static const int32_t missing[] = {3, 1};
    world *w                       = world_create(STEP_TWO_PHASE);
    push_step(w, 418);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) receipt(w, &w->sent[i], 0);
    uint64_t begun = w->now;
    ps_client_step_close(w->x, w, begun + 600000, begun);
    while (w->n_completed == 0) {
        int from = w->n_sent;
        sleep_until_due(w);
        int asked = find_sent(w, WIRE_INQUIRE, from);
        if (asked >= 0) answer_inquiry(w, asked, missing, w->now < begun + 300000 ? 1 : 2);
        w->n_sent = n; /* the test's log is short */
    }
    assert_string_equal(w->log,
                        "waiting 30 s for rank 3 (devbox) to push 'layer7.weight' for step 418");
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_string_equal(
        w->why.text,
        "waited 600 s for ranks 3 (devbox), 1 (devbox) to push 'layer7.weight' for step 418");
    assert_int_equal(w->now, begun + 600000);
    assert_int_equal(w->why.missing_n, 2);
    assert_int_equal(w->why.missing[0], 3);
    assert_int_equal(w->why.rank, 3);
    assert_int_equal(w->why.step, 418);
    assert_string_equal(w->why.tensor, "layer7.weight");
    world_destroy(w);
}

static void test_ps_client_times_out_naming_a_silent_server(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PULL, 1, w->now + 2000);
    char sentence[128];
    snprintf(sentence, sizeof sentence,
             "waited 2 s for server %u (devbox) to answer the pull of 'b'", w->sent[0].shard);
    while (w->n_completed == 0) sleep_until_due(w);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_string_equal(w->why.text, sentence);
    assert_int_equal(ps_client_pending(w->x), 0);
    values(w, &w->sent[0], 7, 0, false); /* too late: the memory belongs to the program again */
    assert_true(w->small[0] == 0);
    world_destroy(w);
}

static void test_ps_client_does_not_push_again_where_the_outcome_is_unknown(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PUSH_PULL, 1, w->now + 100);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    w->now += 100;
    ps_client_tick(w->x, w->now);
    assert_int_equal(w->n_completed, 2); /* the second cannot know its number */
    assert_int_equal(w->status, PEN_TIMED_OUT);
    one_verb(w, PS_PUSH, 1, 0);
    assert_int_equal(w->n_completed, 3);
    assert_int_equal(w->status, PEN_WRONG_STATE);
    assert_string_equal(w->why.text, "a push of 'b' ended without an answer, so it is not known "
                                     "whether it counts; it cannot be pushed again");
    one_verb(w, PS_PULL, 1, 0);
    assert_int_equal(w->n_completed, 3); /* a pull is always possible */
    world_destroy(w);
}

static void test_ps_client_ends_everything_with_the_verdict(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    pen_error verdict;
    why_set(&verdict, PEN_PEER_LOST, "worker 1 (devbox) is gone");
    ps_client_fail(w->x, &verdict, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_PEER_LOST);
    one_verb(w, PS_PULL, 0, 0);
    assert_int_equal(w->n_completed, 2);
    assert_string_equal(w->why.text, "worker 1 (devbox) is gone");
    assert_int_equal(ps_client_pending(w->x), 0);
    world_destroy(w);
}

static void test_ps_client_passes_on_a_shards_final_refusal(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    wire_data d = from_shard(w, w->sent[0].shard, WIRE_REFUSED, 0);
    d.status    = PEN_MISMATCH;
    d.text      = "the clip bound is 1 on rank 0 and 2 on rank 1";
    d.n         = w->sent[0].n;
    d.chunk     = w->sent[0].chunk;
    ps_client_receive(w->x, w->sent[0].shard, &d, NULL, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_MISMATCH);
    assert_string_equal(w->why.text, "the clip bound is 1 on rank 0 and 2 on rank 1");
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_client_warns_and_times_out_with_the_name_of_the_missing_rank),
        cmocka_unit_test(test_ps_client_times_out_naming_a_silent_server),
        cmocka_unit_test(test_ps_client_does_not_push_again_where_the_outcome_is_unknown),
        cmocka_unit_test(test_ps_client_ends_everything_with_the_verdict),
        cmocka_unit_test(test_ps_client_passes_on_a_shards_final_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
