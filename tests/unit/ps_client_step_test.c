/* ps_client_step_test.c - the ps client: two-phase, eager and async steps, and initial values. */
#include "ps_client_world.h"

/* ---- the two-phase step ---------------------------------------------------------------------- */
static void run_decided(world *w, uint64_t step, bool backwards, int bad_partition)
{
    const uint32_t n = w->plan->n_partitions;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = backwards ? n - 1 - i : i;
        if (w->plan->partition[p].n_trained > 0)
            prepared(w, p, step, (int)p != bad_partition, false);
    }
}

static void answer_pulls(world *w, int from, float value)
{
    for (int i = from; i < w->n_sent; i++)
        if (w->sent[i].kind == WIRE_PULL) values(w, &w->sent[i], value, 0, false);
}

static void test_ps_client_decides_alike_in_any_order_of_answers(void **state)
{
    (void)state;
    wire_decision decision[2];
    for (int order = 0; order < 2; order++) {
        world *w = world_create(STEP_TWO_PHASE);
        push_step(w, 0);
        if (order == 1) ps_client_step_close(w->x, w, 0, w->now);
        run_decided(w, 0, order == 1, -1);
        if (order == 0) {
            assert_int_equal(w->n_decided,
                             0); /* parameters belong to the program until it closes the step */
            ps_client_step_close(w->x, w, 0, w->now);
        }
        assert_int_equal(w->n_decided, 1);
        int pulls = w->n_sent;
        ps_client_flush(w->x, w->now);
        assert_true(w->n_sent > pulls);
        decision[order] = w->sent[pulls].decision;
        answer_pulls(w, pulls, 2.5f);
        assert_int_equal(w->n_completed, 1);
        assert_int_equal(w->status, PEN_OK);
        assert_true(w->param[0] == 2.5f && w->param[N - 1] == 2.5f && w->small[7] == 2.5f);
        assert_int_equal(w->outcome.outcome, PEN_APPLIED);
        assert_int_equal(w->outcome.applied, 1);
        world_destroy(w);
    }
    assert_memory_equal(&decision[0], &decision[1], sizeof decision[0]);
}

static void test_ps_client_pulls_carry_the_hashes_of_their_partitions(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    run_decided(w, 0, false, -1);
    int pulls = w->n_sent;
    ps_client_flush(w->x, w->now);
    uint32_t partitions = 0, chunks = 0;
    for (int i = pulls; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_PULL);
        partitions += w->sent[i].n_partitions;
        chunks += w->sent[i].n;
    }
    assert_int_equal(chunks, w->plan->n_chunks);
    uint32_t trained = 0;
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        trained += w->plan->partition[p].n_trained > 0;
    assert_int_equal(partitions, trained);
    world_destroy(w);
}

static void test_ps_client_skips_a_step_that_is_not_finite_and_names_the_rank(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    uint32_t bad = w->plan->chunk[w->plan->n_chunks - 1].partition; /* of 'b' */
    run_decided(w, 0, false, (int)bad);
    assert_int_equal(w->outcome.outcome, PEN_SKIPPED_NONFINITE);
    assert_true(w->outcome.has_bad);
    assert_int_equal(w->outcome.bad_rank, 3);
    assert_int_equal(w->outcome.bad_tensor,
                     w->plan->chunk[w->plan->partition[bad].chunk[0]].tensor);
    assert_int_equal(w->outcome.applied, 0);
    world_destroy(w);
}

/* Number of chunks of this tensor. */
static uint32_t chunks_of(const world *w, uint32_t tensor)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < w->plan->n_chunks; c++) n += w->plan->chunk[c].tensor == tensor;
    return n;
}

static void test_ps_client_tells_of_each_tensor_when_its_last_value_came(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_trained > 0) prepared(w, p, 0, true, false);
    ps_client_flush(w->x, w->now);
    uint32_t stored[2] = {0};
    for (int m = 0; m < w->n_sent; m++) {
        if (w->sent[m].kind != WIRE_PULL) continue;
        values(w, &w->sent[m], 2, 0, true); /* its first chunk is damaged */
        for (uint32_t i = 1; i < w->sent[m].n; i++)
            stored[w->plan->chunk[w->sent[m].chunk[i]].tensor]++;
        for (uint32_t t = 0; t < 2; t++)
            assert_int_equal(w->arrived[t], stored[t] == chunks_of(w, t));
        values(w, &w->sent[m], 2, 0, false);
        stored[w->plan->chunk[w->sent[m].chunk[0]].tensor]++;
        for (uint32_t t = 0; t < 2; t++)
            assert_int_equal(w->arrived[t], stored[t] == chunks_of(w, t));
    }
    assert_int_equal(stored[0] + stored[1], w->plan->n_chunks);
    assert_int_equal(w->n_completed, 1);
    world_destroy(w);
}

static void test_ps_client_rejects_a_damaged_record(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_trained > 0) prepared(w, p, 0, true, p == 0);
    assert_int_equal(w->n_decided, 0);
    assert_int_equal(w->count[STAT_CORRUPT], 1);
    prepared(w, 0, 0, true, false);
    assert_int_equal(w->n_decided, 1);
    world_destroy(w);
}

static void test_ps_client_ignores_records_of_another_step_or_peer(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 3);
    ps_client_step_close(w->x, w, 0, w->now);
    run_decided(w, 2, false, -1);
    assert_int_equal(w->n_decided, 0);
    wire_data d = from_shard(w, 0, WIRE_REFUSED, 3);
    d.from      = 12345;
    d.status    = PEN_MISMATCH;
    ps_client_receive(w->x, 0, &d, NULL, w->now);
    assert_int_equal(w->n_completed, 0);
    assert_int_equal(w->count[STAT_REFUSED], 1);
    run_decided(w, 3, false, -1);
    assert_int_equal(w->n_decided, 1);
    world_destroy(w);
}

static void
test_ps_client_asks_about_a_receipted_push_and_repeats_it_if_no_rank_is_missing(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) receipt(w, &w->sent[i], 0);
    while (w->n_sent == n) sleep_until_due(w);
    assert_int_equal(w->sent[n].kind, WIRE_INQUIRE);
    wire_data d = from_shard(w, w->sent[n].shard, WIRE_WAITING, 0);
    d.n = 1, d.chunk = w->sent[n].chunk, d.text = "w";
    ps_client_receive(w->x, w->sent[n].shard, &d, NULL, w->now);
    int before = w->n_sent;
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->sent[before].kind, WIRE_PUSH);
    assert_int_equal(w->sent[before].flags, WIRE_REPEATED);
    world_destroy(w);
}

/* ---- eager: values that arrive before the step is closed ------------------------------------- */
static void test_ps_client_writes_no_values_before_the_step_is_closed(void **state)
{
    (void)state;
    world *w = world_create(STEP_EAGER);
    push_step(w, 0);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) values(w, &w->sent[i], 8, 0, false);
    assert_true(w->param[0] == 0);
    assert_int_equal(w->n_completed, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->param[0] == 8 && w->param[N - 1] == 8 && w->small[0] == 8);
    world_destroy(w);
}

static void test_ps_client_asks_again_for_held_values_whose_checksum_fails(void **state)
{
    (void)state;
    world *w = world_create(STEP_EAGER);
    push_step(w, 0);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) values(w, &w->sent[i], 8, 0, i == 0);
    ps_client_step_close(w->x, w, 0, w->now);
    assert_int_equal(w->n_completed, 0);
    while (w->n_sent == n) sleep_until_due(w);
    for (int i = n; i < w->n_sent; i++) values(w, &w->sent[i], 8, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    world_destroy(w);
}

/* ---- initial values -------------------------------------------------------------------------- */
static void test_ps_client_sends_initial_values_and_then_fetches_them(void **state)
{
    (void)state;
    world *w             = world_create(STEP_TWO_PHASE);
    ps_client_request *r = ps_client_open(w->x, w->now);
    for (uint32_t t = 0; t < 2; t++) {
        ps_client_add(w->x, r, PS_INIT, t, t == 0 ? w->param : w->small, NULL);
        ps_client_add(w->x, r, PS_LOAD, t, NULL, t == 0 ? w->param : w->small);
    }
    ps_client_close(w->x, r, w, 0, w->now);
    ps_client_flush(w->x, w->now);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_INIT);
        receipt(w, &w->sent[i], WIRE_INITIAL);
    }
    ps_client_flush(w->x, w->now);
    for (int i = n; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_PULL);
        assert_int_equal(w->sent[i].flags, WIRE_INITIAL);
        values(w, &w->sent[i], 1, WIRE_INITIAL, false);
    }
    assert_int_equal(w->n_completed, 1);
    assert_true(w->param[N - 1] == 1 && w->small[0] == 1);
    world_destroy(w);
}

/* ---- groups that differ ---------------------------------------------------------------------- */
static void test_ps_client_drives_two_phase_and_async_chunks_in_one_step(void **state)
{
    (void)state;
    world *w =
        world_of(&(world_shape){.rule = STEP_TWO_PHASE, .sync = {"bsp", "async"}, .wire = "raw"});
    push_step(w, 5);
    const sent *free = NULL;
    for (int i = 0; i < w->n_sent; i++) {
        bool is_free = w->plan->chunk[w->sent[i].chunk[0]].tensor == 1;
        assert_int_equal(w->sent[i].flags, is_free ? WIRE_WANT_VALUES : 0);
        assert_int_equal(w->sent[i].seq[0], is_free ? 0 : 5); /* its own count; the step */
        if (is_free) free = &w->sent[i];
    }
    assert_non_null(free);
    const sent push = *free;
    w->n_sent       = 0;
    values(w, &push, 3, 0, false);
    assert_true(w->small[0] == 0); /* early: buffered until the step is closed */
    ps_client_step_close(w->x, w, 0, w->now);
    assert_true(w->small[0] == 3); /* does not wait for the decision */
    assert_int_equal(w->n_decided + w->n_completed, 0);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, 5, true, false);
    assert_int_equal(w->n_decided, 1);
    ps_client_flush(w->x, w->now);
    assert_in_range(w->n_sent, 1, SENT_MAX);
    for (int i = 0, n = w->n_sent; i < n; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_PULL);
        assert_int_equal(w->plan->chunk[w->sent[i].chunk[0]].tensor, 0);
        values(w, &w->sent[i], 2, 0, false);
    }
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    assert_true(w->param[N - 1] == 2);
    world_destroy(w);
}

static void test_ps_client_asks_for_both_kinds_of_chunks_when_their_answers_are_late(void **state)
{
    (void)state;
    world *w =
        world_of(&(world_shape){.rule = STEP_TWO_PHASE, .sync = {"async", "bsp"}, .wire = "raw"});
    push_step(w, 0);
    int pushes = w->n_sent;
    for (int i = 0; i < pushes; i++) receipt(w, &w->sent[i], 0);
    w->n_sent     = 0;
    bool asked[2] = {false};
    for (int round = 0; round < 6; round++) sleep_until_due(w);
    for (int i = 0; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_INQUIRE);
        asked[w->plan->chunk[w->sent[i].chunk[0]].tensor] = true;
    }
    assert_true(asked[0] && asked[1]);
    world_destroy(w);
}

static void test_ps_client_does_not_pull_async_chunks_with_the_decision(void **state)
{
    (void)state;
    world *w =
        world_of(&(world_shape){.rule = STEP_TWO_PHASE, .sync = {"bsp", "async"}, .wire = "raw"});
    push_step(w, 0);
    sent push = w->sent[0];
    for (int i = 0; i < w->n_sent; i++)
        if (w->plan->chunk[w->sent[i].chunk[0]].tensor == 1) push = w->sent[i];
    ps_client_step_close(w->x, w, 0, w->now);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, 0, true, false);
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    for (int i = 0; i < w->n_sent; i++) {
        assert_int_equal(w->plan->chunk[w->sent[i].chunk[0]].tensor, 0);
        values(w, &w->sent[i], 2, 0, false);
    }
    assert_int_equal(w->n_completed, 0); /* the answer to the async push is still missing */
    values(w, &push, 3, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[7] == 3);
    world_destroy(w);
}

/* PREPARED is about the decided chunks of a partition; the others wait for their own answers. */
static void test_ps_client_asks_for_async_chunks_of_a_prepared_partition(void **state)
{
    (void)state;
    world *w             = world_of(&(world_shape){
                    .rule = STEP_TWO_PHASE, .sync = {"bsp", "async"}, .wire = "raw", .many = true});
    ps_client_request *r = ps_client_step_open(w->x, 0, &step_inputs, w->now);
    for (uint32_t t = 0; t < TENSORS; t++)
        ps_client_add(w->x, r, PS_STEP, t, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
    for (int i = 0; i < w->n_sent; i++) receipt(w, &w->sent[i], 0);
    uint32_t mixed         = 0;
    bool is_asked[TENSORS] = {false};
    for (int round = 0; round < 400;
         round++) { /* before PREPARED: about one decided chunk of each */
        w->n_sent = 0;
        sleep_until_due(w);
        for (int i = 0; i < w->n_sent; i++) is_asked[w->sent[i].chunk[0]] = true;
    }
    for (uint32_t p = 0; p < w->plan->n_partitions; p++) {
        const plan_partition *part = &w->plan->partition[p];
        bool asks                  = part->n_decided == 0;
        for (uint32_t i = 0; i < part->n_chunks; i++)
            asks |= part->chunk[i] % 3 == 0 && is_asked[part->chunk[i]];
        assert_true(asks);
    }
    for (uint32_t p = 0; p < w->plan->n_partitions; p++) {
        const plan_partition *part = &w->plan->partition[p];
        if (part->n_decided > 0) prepared(w, p, 0, true, false);
        mixed += part->n_decided > 0 && part->n_decided < part->n_trained;
    }
    assert_in_range(mixed, 1, TENSORS);
    memset(is_asked, 0, sizeof is_asked);
    for (int round = 0; round < 400; round++) {
        w->n_sent = 0;
        sleep_until_due(w);
        for (int i = 0; i < w->n_sent; i++) is_asked[w->sent[i].chunk[0]] = true;
    }
    for (uint32_t t = 0; t < TENSORS; t++) assert_int_equal(is_asked[t], t % 3 > 0);
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_client_decides_alike_in_any_order_of_answers),
        cmocka_unit_test(test_ps_client_pulls_carry_the_hashes_of_their_partitions),
        cmocka_unit_test(test_ps_client_skips_a_step_that_is_not_finite_and_names_the_rank),
        cmocka_unit_test(test_ps_client_tells_of_each_tensor_when_its_last_value_came),
        cmocka_unit_test(test_ps_client_rejects_a_damaged_record),
        cmocka_unit_test(test_ps_client_ignores_records_of_another_step_or_peer),
        cmocka_unit_test(
            test_ps_client_asks_about_a_receipted_push_and_repeats_it_if_no_rank_is_missing),
        cmocka_unit_test(test_ps_client_writes_no_values_before_the_step_is_closed),
        cmocka_unit_test(test_ps_client_asks_again_for_held_values_whose_checksum_fails),
        cmocka_unit_test(test_ps_client_sends_initial_values_and_then_fetches_them),
        cmocka_unit_test(test_ps_client_drives_two_phase_and_async_chunks_in_one_step),
        cmocka_unit_test(test_ps_client_asks_for_both_kinds_of_chunks_when_their_answers_are_late),
        cmocka_unit_test(test_ps_client_does_not_pull_async_chunks_with_the_decision),
        cmocka_unit_test(test_ps_client_asks_for_async_chunks_of_a_prepared_partition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
