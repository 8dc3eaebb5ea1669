/* ps_client_send_test.c - the ps client: what it sends, repeats, and buffers for an answer. */
#include "ps_client_world.h"

/* ---- retry ----------------------------------------------------------------------------------- */
static void test_retry_doubles_to_a_bound_with_jitter_from_the_seed(void **state)
{
    (void)state;
    const retry_policy policy = retry_policy_make(100, 5);
    uint64_t a = policy.seed, b = policy.seed, c = 6, differs = 0;
    for (uint32_t tries = 1; tries < 20; tries++) {
        uint64_t full = 100u << (tries - 1 < 16 ? tries - 1 : 16);
        if (full > policy.most_ms) full = policy.most_ms;
        uint64_t wait = retry_wait_ms(&policy, RETRY_SILENCE, tries, &a);
        assert_in_range(wait, full - full / 2, full);
        assert_int_equal(wait, retry_wait_ms(&policy, RETRY_SILENCE, tries, &b));
        differs += wait != retry_wait_ms(&policy, RETRY_SILENCE, tries, &c);
    }
    assert_true(differs > 10);
}

static void test_ps_client_repeats_unanswered_messages(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].flags, WIRE_WANT_VALUES);
    assert_in_range(sleep_until_due(w), 500, 1000);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[1].kind, WIRE_PUSH);
    assert_int_equal(w->sent[1].flags, WIRE_WANT_VALUES | WIRE_REPEATED);
    assert_int_equal(w->sent[1].seq[0], w->sent[0].seq[0]);
    assert_in_range(sleep_until_due(w), 1000, 2000);
    values(w, &w->sent[0], 4, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    assert_true(w->small[7] == 4);
    assert_int_equal(w->result.version, 1);
    assert_int_equal(w->count[STAT_RETRIES], 2);
    world_destroy(w);
}

static void test_ps_client_ignores_repeated_and_late_answers(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    values(w, &w->sent[0], 1, 0, false);
    values(w, &w->sent[0], 2, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[0] == 1);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    assert_int_equal(w->sent[1].seq[0], 1);
    values(w, &w->sent[0], 3, 0, false); /* of the first push */
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[0] == 1);
    values(w, &w->sent[1], 5, 0, false);
    assert_int_equal(w->n_completed, 2);
    assert_true(w->small[0] == 5);
    world_destroy(w);
}

static void test_ps_client_has_one_push_of_a_chunk_in_flight(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    assert_int_equal(w->n_sent, 1);
    values(w, &w->sent[0], 1, 0, false);
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[1].seq[0], 1);
    values(w, &w->sent[1], 2, 0, false);
    assert_int_equal(w->n_completed, 2);
    world_destroy(w);
}

static void test_ps_client_asks_again_for_values_whose_checksum_fails(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PULL, 1, 0);
    values(w, &w->sent[0], 9, 0, true);
    assert_int_equal(w->n_completed, 0);
    assert_true(w->small[0] == 0);
    assert_int_equal(w->count[STAT_CORRUPT], 1);
    sleep_until_due(w);
    assert_int_equal(w->n_sent, 2);
    values(w, &w->sent[1], 9, 0, false);
    assert_int_equal(w->n_completed, 1);
    world_destroy(w);
}

static void
test_ps_client_sends_nothing_of_a_push_whose_values_came_while_its_repeat_was_queued(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    receipt(w, &w->sent[0], 0);
    answer_inquiry_of(w, w->sent[0].step, 0, NULL, 0); /* no rank is missing: its repeat waits */
    values(w, &w->sent[0], 9, 0, true);
    values(w, &w->sent[0], 9, 0, false);
    assert_int_equal(w->n_completed, 1);
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 1);
    world_destroy(w);
}

static void test_ps_client_backs_off_when_a_shard_has_no_room(void **state)
{
    (void)state;
    world *w = world_create(STEP_TWO_PHASE);
    push_step(w, 0);
    int n       = w->n_sent;
    wire_data d = from_shard(w, w->sent[0].shard, WIRE_REFUSED, 0);
    d.status    = PEN_AGAIN;
    d.n         = w->sent[0].n;
    d.chunk     = w->sent[0].chunk;
    ps_client_receive(w->x, w->sent[0].shard, &d, NULL, w->now);
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->n_sent, n);
    assert_in_range(sleep_until_due(w), 1, 10);
    while (w->n_sent == n) sleep_until_due(w); /* jitter may split the chunks of one message */
    assert_int_equal(w->sent[n].kind, WIRE_PUSH);
    assert_int_equal(w->sent[n].step, 0);
    world_destroy(w);
}

/* The shard has no room for a message, or misses what was sent before it. */
static void refuse_for_now(world *w, const sent *s)
{
    wire_data d = from_shard(w, s->shard, WIRE_REFUSED, s->step);
    d.status    = PEN_AGAIN;
    d.n         = s->n;
    d.chunk     = s->chunk;
    d.seq       = s->seq;
    ps_client_receive(w->x, s->shard, &d, NULL, w->now);
}

static void
test_ps_client_sends_rows_that_were_refused_behind_lost_ones_again_with_these(void **state)
{
    (void)state;
    enum { PUSHES = 20 };
    static const uint64_t rows[2];
    world *w             = world_of(&(world_shape){
                    .rule = STEP_ASYNC, .sync = {"async", "async"}, .wire = "raw", .table = true});
    ps_client_request *r = ps_client_open(w->x, w->now);
    for (int i = 0; i < PUSHES; i++) {
        ps_client_add_rows(w->x, r, PS_PUSH, w->plan->first_chunk[1], rows, sizeof rows, NULL);
        if (i % 4 == 0) ps_client_flush(w->x, w->now); /* several messages */
    }
    ps_client_close(w->x, r, w, 0, w->now);
    ps_client_flush(w->x, w->now);
    const int n = w->n_sent;
    assert_true(n > 1);
    for (int i = 1; i < n; i++) refuse_for_now(w, &w->sent[i]); /* the first is lost */
    while (w->n_sent == n) sleep_until_due(w);
    uint64_t next = 0;
    for (int m = n; m < w->n_sent; m++)
        for (uint32_t i = 0; i < w->sent[m].n; i++) assert_int_equal(w->sent[m].seq[i], next++);
    assert_int_equal(next, PUSHES);
    world_destroy(w);
}

static void test_ps_client_sends_unanswered_again_when_a_connection_is_back(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    one_verb(w, PS_PUSH_PULL, 1, 0);
    uint32_t shard = w->sent[0].shard;
    ps_client_down(w->x, shard, 0);
    one_verb(w, PS_PULL, 1, 0);
    sleep_until_due(w);
    assert_int_equal(w->n_sent, 1); /* nothing is sent on a connection that is gone */
    ps_client_up(w->x, shard, 0, w->now);
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[1].seq[0], 0);
    world_destroy(w);
}

static void test_ps_client_sends_again_after_a_full_queue(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    w->full  = true;
    one_verb(w, PS_PUSH_PULL, 1, 0);
    assert_int_equal(w->n_sent, 0);
    w->full = false;
    assert_in_range(sleep_until_due(w), 1, 10);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].flags & WIRE_REPEATED, 0);
    world_destroy(w);
}

/* ---- what is in flight, and whose buffers it uses -------------------------------------------- */
static size_t bytes_sent(const world *w, int shard, int from)
{
    size_t bytes = 0;
    for (int i = from; i < w->n_sent; i++)
        if (shard < 0 || (int)w->sent[i].shard == shard) bytes += w->sent[i].piece[0].size;
    return bytes;
}

static void test_ps_client_keeps_a_bounded_lead_over_a_shard_that_does_not_answer(void **state)
{
    (void)state;
    enum { CREDIT = 16 << 20 };
    world *w     = world_of(&(world_shape){.rule      = STEP_ASYNC,
                                           .sync      = {"async", "async"},
                                           .wire      = "raw",
                                           .one_group = true,
                                           .large     = true});
    size_t chunk = LARGE / 64 * sizeof(float);
    one_verb(w, PS_PUSH, 0, 0);
    for (int shard = 0; shard < SHARDS; shard++) assert_int_equal(bytes_sent(w, shard, 0), CREDIT);
    int before = w->n_sent;
    one_verb(w, PS_PUSH, 1, 0); /* a small one waits its turn, but needs no credit */
    assert_int_equal(w->n_sent, before);

    receipt(w, &w->sent[0], 0);
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->n_sent, before + 1);
    assert_int_equal(bytes_sent(w, (int)w->sent[0].shard, before), chunk);

    for (int i = 1; i < w->n_sent; i++) { /* a rank that answers gets the rest */
        receipt(w, &w->sent[i], 0);
        ps_client_flush(w->x, w->now);
    }
    assert_int_equal(bytes_sent(w, -1, 0), LARGE * sizeof(float) + 8 * sizeof(float));
    world_destroy(w);
}

static void test_ps_client_returns_a_buffer_only_after_the_transport_released_it(void **state)
{
    (void)state;
    world *w = world_create(STEP_ASYNC);
    w->hold  = true;
    one_verb(w, PS_PUSH_PULL, 1, w->now + 100);
    values(w, &w->sent[0], 1, 0, false);
    assert_int_equal(w->n_completed, 0);
    ps_client_release(w->x, w->sent[0].held);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);

    one_verb(w, PS_PUSH_PULL, 1, w->now + 100);
    w->now += 100;
    ps_client_tick(w->x, w->now);
    assert_int_equal(w->n_cut, 1); /* a deadline withdraws it */
    assert_int_equal(w->n_completed, 1);
    ps_client_release(w->x, w->sent[1].held);
    assert_int_equal(w->n_completed, 2);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    world_destroy(w);
}

/* ---- fewer bits ------------------------------------------------------------------------------ */
static void test_ps_client_sends_gradients_in_16_bits_and_initial_values_unrounded(void **state)
{
    (void)state;
    world *w = world_of(&(world_shape){
        .rule = STEP_TWO_PHASE, .sync = {"bsp", "bsp"}, .wire = "bf16", .one_group = true});
    one_verb(w, PS_INIT, 0, 0);
    for (int i = 0; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].piece[0].encode, PEN_DTYPE_DEFAULT);
        receipt(w, &w->sent[i], WIRE_INITIAL);
    }
    w->n_sent = 0;
    push_step(w, 0);
    const uint64_t before = w->count[STAT_PUSH_BYTES];
    int first             = w->n_sent;
    sleep_until_due(w); /* repeats are identical */
    assert_in_range(w->n_sent, first + 1, SENT_MAX);
    for (int i = 0; i < w->n_sent; i++)
        for (uint32_t k = 0; k < w->sent[i].n_pieces; k++) {
            const ps_client_piece *p = &w->sent[i].piece[k];
            const plan_chunk *chunk  = &w->plan->chunk[w->sent[i].chunk[k]];
            const float *from        = chunk->tensor == 0 ? w->grad : w->small_grad;
            assert_int_equal(p->encode, PEN_BF16);
            assert_int_equal(p->size, chunk->count * 2);
            assert_ptr_equal(p->data, from + chunk->start);
        }
    assert_int_equal(before, (N + 8) * 2);
    world_destroy(w);
}

/* ---- order ----------------------------------------------------------------------------------- */
static world *world_of_many(ps_client_rule rule)
{
    const char *sync = rule == STEP_ASYNC ? "async" : "bsp";
    return world_of(
        &(world_shape){.rule = rule, .sync = {sync, sync}, .wire = "raw", .many = true});
}

static uint32_t tensor_of(const world *w, const sent *s, uint32_t i)
{
    return w->plan->chunk[s->chunk[i]].tensor;
}

/* Of each shard's messages from `first` on: registered first, sent first.  Returns how many chunks. */
static uint32_t assert_registered_order(const world *w, int first)
{
    uint32_t next[SHARDS] = {0}, n = 0;
    for (int m = first; m < w->n_sent; m++)
        for (uint32_t i = 0; i < w->sent[m].n; i++, n++) {
            const uint32_t tensor = tensor_of(w, &w->sent[m], i);
            assert_true(tensor >= next[w->sent[m].shard]);
            next[w->sent[m].shard] = tensor + 1;
        }
    return n;
}

static void push_backwards(world *w)
{
    ps_client_request *r = ps_client_step_open(w->x, 0, &step_inputs, w->now);
    for (uint32_t t = TENSORS; t-- > 0;)
        ps_client_add(w->x, r, PS_STEP, t, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
}

static void test_ps_client_pushes_the_first_tensors_of_an_eager_step_first(void **state)
{
    (void)state;
    world *w = world_of_many(STEP_EAGER);
    push_backwards(w);
    assert_int_equal(assert_registered_order(w, 0), TENSORS);
    world_destroy(w);
}

static void test_ps_client_asks_for_the_first_tensors_of_a_decided_step_first(void **state)
{
    (void)state;
    world *w = world_of_many(STEP_TWO_PHASE);
    push_backwards(w);
    assert_int_equal(tensor_of(w, &w->sent[w->n_sent - 1], w->sent[w->n_sent - 1].n - 1) < SHARDS,
                     true); /* pushes go as they become ready */
    const int pushes = w->n_sent;
    for (uint32_t p = 0; p < w->plan->n_partitions; p++) prepared(w, p, 0, true, false);
    ps_client_step_close(w->x, w, 0, w->now);
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->sent[pushes].kind, WIRE_PULL);
    assert_int_equal(assert_registered_order(w, pushes), TENSORS);
    world_destroy(w);
}

static void pull(world *w, uint32_t tensor, int32_t priority)
{
    ps_client_request *r = ps_client_open(w->x, w->now);
    ps_client_prefer(r, priority);
    ps_client_add(w->x, r, PS_PULL, tensor, NULL, w->small);
    ps_client_close(w->x, r, w, 0, w->now);
}

/* Tensors of one shard, of `n` that wait, in the order in which they go. */
static void assert_sent(world *w, uint32_t shard, const uint32_t *tensor, uint32_t n)
{
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].shard, shard);
    assert_int_equal(w->sent[0].n, n);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(tensor_of(w, &w->sent[0], i), tensor[i]);
}

static void test_ps_client_sends_higher_priorities_first_and_equal_ones_in_call_order(void **state)
{
    (void)state;
    world *w = world_of_many(STEP_ASYNC);
    uint32_t t[5], n = 0;
    const uint32_t shard = w->shard[w->plan->chunk[0].partition];
    for (uint32_t c = 0; c < w->plan->n_chunks && n < 5; c++)
        if (w->shard[w->plan->chunk[c].partition] == shard) t[n++] = w->plan->chunk[c].tensor;
    assert_int_equal(n, 5);
    w->tensor[t[3]].priority = 2; /* the client reads the model: BORROWED */
    pull(w, t[4], 0);
    pull(w, t[1], -1);
    pull(w, t[0], 0);
    pull(w, t[3], 0);
    pull(w, t[2], 3);
    assert_sent(w, shard, (const uint32_t[]){t[2], t[3], t[4], t[0], t[1]}, 5);
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retry_doubles_to_a_bound_with_jitter_from_the_seed),
        cmocka_unit_test(test_ps_client_repeats_unanswered_messages),
        cmocka_unit_test(test_ps_client_ignores_repeated_and_late_answers),
        cmocka_unit_test(test_ps_client_has_one_push_of_a_chunk_in_flight),
        cmocka_unit_test(test_ps_client_asks_again_for_values_whose_checksum_fails),
        cmocka_unit_test(
            test_ps_client_sends_nothing_of_a_push_whose_values_came_while_its_repeat_was_queued),
        cmocka_unit_test(test_ps_client_backs_off_when_a_shard_has_no_room),
        cmocka_unit_test(
            test_ps_client_sends_rows_that_were_refused_behind_lost_ones_again_with_these),
        cmocka_unit_test(test_ps_client_sends_unanswered_again_when_a_connection_is_back),
        cmocka_unit_test(test_ps_client_sends_again_after_a_full_queue),
        cmocka_unit_test(test_ps_client_keeps_a_bounded_lead_over_a_shard_that_does_not_answer),
        cmocka_unit_test(test_ps_client_returns_a_buffer_only_after_the_transport_released_it),
        cmocka_unit_test(test_ps_client_sends_gradients_in_16_bits_and_initial_values_unrounded),
        cmocka_unit_test(test_ps_client_pushes_the_first_tensors_of_an_eager_step_first),
        cmocka_unit_test(test_ps_client_asks_for_the_first_tensors_of_a_decided_step_first),
        cmocka_unit_test(test_ps_client_sends_higher_priorities_first_and_equal_ones_in_call_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
