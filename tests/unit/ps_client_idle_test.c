/* ps_client_idle_test.c - the ps client: shards that a step does not reach, and partitions of other ranks. */
#include "ps_client_world.h"
#include "worker/ps/ps_client_test.h"

/* ---- shards without trained chunks ----------------------------------------------------------- */
static world *world_with_idle_shard(void)
{
    return world_of(&(world_shape){.rule       = STEP_TWO_PHASE,
                                   .sync       = {"bsp", "bsp"},
                                   .wire       = "raw",
                                   .one_group  = true,
                                   .one_tensor = true});
}

static void open_small_step(world *w, uint64_t step, bool snapshot)
{
    wire_inputs in       = step_inputs;
    in.snapshot          = snapshot;
    ps_client_request *r = ps_client_step_open(w->x, step, &in, w->now);
    ps_client_add(w->x, r, PS_STEP, 0, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
}

static const sent *find_sign(const world *w)
{
    const sent *found = NULL;
    for (int i = 0; i < w->n_sent; i++)
        if (w->sent[i].n == 0) found = &w->sent[i];
    return found;
}

static void end_small_step(world *w, uint64_t step)
{
    ps_client_step_close(w->x, w, 0, w->now);
    w->n_sent = 0;
    prepared(w, 0, step, true, false);
    ps_client_flush(w->x, w->now);
    int at = 0;
    while (at < w->n_sent && w->sent[at].kind != WIRE_PULL) at++;
    assert_in_range(at, 0, w->n_sent - 1);
    const sent pull = w->sent[at];
    values(w, &pull, 1, 0, false);
}

static void test_ps_client_repeats_a_snapshot_request_until_idle_shards_confirm(void **state)
{
    (void)state;
    world *w = world_with_idle_shard();
    open_small_step(w, 0, false);
    assert_null(find_sign(w));
    end_small_step(w, 0);
    assert_int_equal(w->n_completed, 1);

    w->n_sent = 0;
    open_small_step(w, 1, true);
    assert_null(find_sign(w)); /* other ranks may still push rows of a table */
    end_small_step(w, 1);
    assert_non_null(find_sign(w));
    const sent sign = *find_sign(w);
    assert_int_equal(sign.kind, WIRE_PUSH);
    assert_int_equal(sign.step, 1);
    assert_int_equal(sign.shard, 1 - w->shard[0]);
    assert_true(sign.snapshot);
    assert_int_equal(w->n_completed, 1); /* waits for the receipt */
    w->n_sent = 0;
    for (int i = 0; i < 5 && find_sign(w) == NULL; i++) sleep_until_due(w);
    assert_non_null(find_sign(w)); /* sent again */
    assert_int_equal(find_sign(w)->flags, WIRE_REPEATED);
    receipt(w, &(sent){.shard = sign.shard, .step = 0}, 0); /* of another step */
    assert_int_equal(w->n_completed, 1);
    receipt(w, &sign, 0);
    receipt(w, &sign, 0);
    assert_int_equal(w->n_completed, 2);
    assert_int_equal(w->status, PEN_OK);
    assert_int_equal(ps_client_pending(w->x), 0);
    world_destroy(w);
}

static void test_ps_client_forgets_idle_shards_with_a_step_that_fails(void **state)
{
    (void)state;
    world *w = world_with_idle_shard();
    open_small_step(w, 0, true);
    end_small_step(w, 0);
    pen_error why = {.status = PEN_ABORTED, .text = "enough"};
    ps_client_fail(w->x, &why, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_ABORTED);
    assert_int_equal(ps_client_pending(w->x), 0);
    world_destroy(w);
}

static void test_ps_client_times_out_naming_the_idle_server_that_does_not_answer(void **state)
{
    (void)state;
    world *w = world_with_idle_shard();
    open_small_step(w, 0, true);
    ps_client_step_close(w->x, w, w->now + 5000, w->now);
    prepared(w, 0, 0, true, false);
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    const sent pull = w->sent[0];
    values(w, &pull, 1, 0, false);
    for (int i = 0; i < 20 && w->n_completed == 0; i++) sleep_until_due(w);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    char want[128];
    snprintf(want, sizeof want, "waited 5 s for server %u (devbox) to take its part of a snapshot",
             1 - w->shard[0]);
    assert_string_equal(w->why.text, want);
    world_destroy(w);
}

/* ---- node sums ------------------------------------------------------------------------------- */
enum { OWN_PARTITION = 0, FOREIGN_PARTITION = 1 };

/* This rank pushes the chunks of one partition; other ranks of its node push the rest. */
static world *world_with_a_share(void)
{
    world *w             = world_of(&(world_shape){.rule      = STEP_TWO_PHASE,
                                                   .sync      = {"bsp", "bsp"},
                                                   .wire      = "raw",
                                                   .one_group = true,
                                                   .many      = true});
    wire_inputs in       = step_inputs;
    in.is_node_sum       = true;
    ps_client_request *r = ps_client_step_open(w->x, 0, &in, w->now);
    assert_in_range(w->plan->n_partitions, 2, TENSORS);
    const plan_partition *own = &w->plan->partition[OWN_PARTITION];
    for (uint32_t i = 0; i < own->n_chunks; i++)
        ps_client_add_chunk(w->x, r, PS_STEP, own->chunk[i], w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
    return w;
}

static int find_inquiry_about(const world *w, uint32_t partition)
{
    for (int i = 0; i < w->n_sent; i++)
        if (w->sent[i].kind == WIRE_INQUIRE &&
            w->plan->chunk[w->sent[i].chunk[0]].partition == partition)
            return i;
    return -1;
}

static void bring_all_records_but(world *w, uint32_t lost)
{
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (p != lost && w->plan->partition[p].n_decided > 0) prepared(w, p, 0, true, false);
    assert_int_equal(w->n_decided, 0);
    w->n_sent = 0;
}

static void
test_ps_client_asks_for_a_lost_record_of_a_partition_that_others_of_the_node_push(void **state)
{
    (void)state;
    world *w = world_with_a_share();
    ps_client_step_close(w->x, w, w->now + 600000, w->now);
    bring_all_records_but(w, FOREIGN_PARTITION);
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0);
    assert_int_equal(find_inquiry_about(w, OWN_PARTITION), -1); /* is prepared */
    w->n_sent = 0;
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0); /* the answer was lost as well */
    prepared(w, FOREIGN_PARTITION, 0, true, false);
    assert_int_equal(w->n_decided, 1);
    w->n_sent = 0;
    for (int i = 0; i < 20 && w->n_sent < 20; i++) sleep_until_due(w);
    assert_int_equal(find_inquiry_about(w, FOREIGN_PARTITION),
                     -1); /* only its own pulls are left */
    world_destroy(w);
}

/* Milliseconds until the record of the foreign partition is asked for. */
static uint64_t asks_after(world *w)
{
    const uint64_t begun = w->now;
    w->n_sent            = 0;
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0);
    return w->now - begun;
}

static void
test_ps_client_asks_for_records_at_the_first_end_of_a_step_after_an_epoch_began(void **state)
{
    (void)state;
    world *w = world_with_a_share(); /* the connections are new */
    ps_client_step_close(w->x, w, w->now + 600000, w->now);
    assert_int_equal(asks_after(w), 0);
    assert_in_range(asks_after(w), 1000, 600000); /* an answer is expected */
    world_destroy(w);
}

static void test_ps_client_soon_repeats_a_question_for_a_record_that_came_too_early(void **state)
{
    (void)state;
    world *w = world_with_a_share();
    ps_client_step_close(w->x, w, w->now + 600000, w->now);
    assert_int_equal(asks_after(w), 0);
    const sent *asked = &w->sent[find_inquiry_about(w, FOREIGN_PARTITION)];
    wire_data d       = from_shard(w, asked->shard, WIRE_REFUSED, asked->step);
    d.status = PEN_AGAIN, d.n = asked->n, d.chunk = asked->chunk;
    ps_client_receive(w->x, asked->shard, &d, NULL, w->now);
    assert_in_range(asks_after(w), 1, 8);
    world_destroy(w);
}

static void
test_ps_client_asks_for_records_of_others_at_once_when_a_connection_is_back(void **state)
{
    (void)state;
    world *w             = world_with_a_share();
    const uint32_t shard = w->shard[FOREIGN_PARTITION];
    ps_client_down(w->x, shard, 0);
    ps_client_up(w->x, shard, 0, w->now);
    ps_client_tick(w->x, w->now);
    assert_int_equal(find_inquiry_about(w, FOREIGN_PARTITION),
                     -1); /* known only when the step closes */
    ps_client_step_close(w->x, w, 0, w->now);
    bring_all_records_but(w, FOREIGN_PARTITION);
    ps_client_tick(w->x, w->now);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0);
    world_destroy(w);
}

static void test_ps_client_names_the_rank_that_delays_a_partition_of_others(void **state)
{
    (void)state;
    world *w = world_with_a_share();
    ps_client_step_close(w->x, w, w->now + 20000, w->now);
    bring_all_records_but(w, FOREIGN_PARTITION);
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    const int32_t missing[] = {3};
    answer_inquiry_of(w, 0, find_inquiry_about(w, FOREIGN_PARTITION), missing, 1);
    for (int i = 0; i < 200 && w->n_completed == 0; i++) sleep_until_due(w);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_int_equal(w->why.rank, 3);
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_client_repeats_a_snapshot_request_until_idle_shards_confirm),
        cmocka_unit_test(test_ps_client_forgets_idle_shards_with_a_step_that_fails),
        cmocka_unit_test(test_ps_client_times_out_naming_the_idle_server_that_does_not_answer),
        cmocka_unit_test(
            test_ps_client_asks_for_a_lost_record_of_a_partition_that_others_of_the_node_push),
        cmocka_unit_test(
            test_ps_client_asks_for_records_at_the_first_end_of_a_step_after_an_epoch_began),
        cmocka_unit_test(test_ps_client_soon_repeats_a_question_for_a_record_that_came_too_early),
        cmocka_unit_test(
            test_ps_client_asks_for_records_of_others_at_once_when_a_connection_is_back),
        cmocka_unit_test(test_ps_client_names_the_rank_that_delays_a_partition_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
