/* shard_core_test.c - the core alone: events in, actions out, on descriptors of a handful of chunks. */
#include "server/shard/core/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { A, B, C, CHUNKS, RANKS = 3, TERM = 1, EPOCH = 1 };

static double rates[] = {0.1};
static wire_inputs inputs;

/* A and B belong to partition 0, C to partition 1; all to one group. */
static shard_core *start_by(const char *rule, sum_order order, uint64_t park_bytes_max)
{
    const shard_core_chunk_desc chunks[CHUNKS] = {{"a", 0, 0, 100, true, 0, 200},
                                                  {"b", 0, 0, 100, true, 1, 200},
                                                  {"c", 1, 0, 100, true, 2, 200}};
    shard_core_group group                     = {0};
    pen_error why;
    assert_int_equal(sync_parse(rule, &group.ops, &group.hyper, &why), PEN_OK);
    const shard_core_config config = {.n_chunks       = CHUNKS,
                                      .n_partitions   = 2,
                                      .n_groups       = 1,
                                      .chunk          = chunks,
                                      .group          = &group,
                                      .order          = order,
                                      .park_bytes_max = park_bytes_max};
    shard_core *c;
    assert_int_equal(shard_core_create(&config, RANKS, &c, &why), PEN_OK);
    const uint64_t incarnation[RANKS] = {50, 51, 52};
    bool changed;
    shard_core_epoch(c, TERM, EPOCH, incarnation, RANKS, &changed);
    assert_true(changed);
    for (uint32_t k = 0; k < CHUNKS; k++) {
        assert_int_equal(shard_core_restart(c, k).n, 0);
        shard_core_first_values(c, k);
    }
    inputs = (wire_inputs){.loss_scale = 1, .weight = 1, .n_rates = 1, .rate = rates};
    return c;
}

static shard_core *start(const char *rule, bool deterministic, uint64_t park_bytes_max)
{
    return start_by(rule, deterministic ? SUMS_BY_RANK : SUMS_LOOSE, park_bytes_max);
}

static shard_core_actions push(shard_core *c, int32_t rank, uint64_t seq, uint32_t chunk, bool want)
{
    const shard_core_push_event e = {.rank        = rank,
                                     .peer        = 10 + (uint32_t)rank,
                                     .chunk       = chunk,
                                     .seq         = seq,
                                     .want_values = want,
                                     .inputs      = &inputs};
    if (!want) shard_core_inputs(c, rank, seq, &inputs, NULL);
    return shard_core_push(c, &e);
}

/* "FOLD 1" for each action with its rank, in order. */
static void assert_says(shard_core_actions a, const char *want)
{
    static const char *const names[] = {"FOLD",    "KEEP",   "NODE",  "SUMMED", "PREPARED",
                                        "COMMIT",  "UPDATE", "DROP",  "SERVE",  "APPLIED",
                                        "RECEIPT", "HELD",   "REFUSE"};
    char said[1024]                  = "";
    for (uint32_t i = 0; i < a.n; i++) {
        char word[32];
        snprintf(word, sizeof word, "%s%s %d", i > 0 ? ", " : "", names[a.at[i].verb],
                 a.at[i].rank);
        strcat(said, word);
    }
    assert_string_equal(said, want);
}

static void test_core_folds_in_rank_order_and_buffers_early_ranks(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    assert_says(push(c, 2, 0, A, false), "KEEP 2, RECEIPT 2");
    assert_says(push(c, 1, 0, A, false), "KEEP 1, RECEIPT 1");
    assert_int_equal(shard_core_parked_bytes(c), 200);
    assert_says(push(c, 0, 0, A, false), "FOLD 0, FOLD 1, FOLD 2, RECEIPT 0, SUMMED -1");
    assert_int_equal(shard_core_parked_bytes(c), 0);
    shard_core_destroy(c);
}

static void test_core_fast_mode_folds_on_arrival(void **state)
{
    (void)state;
    shard_core *c = start("bsp", false, 0);
    assert_says(push(c, 2, 0, A, false), "FOLD 2, RECEIPT 2");
    assert_says(push(c, 0, 0, A, false), "FOLD 0, RECEIPT 0");
    assert_says(push(c, 1, 0, A, false), "FOLD 1, RECEIPT 1, SUMMED -1");
    shard_core_destroy(c);
}

static void test_core_does_not_record_a_push_it_has_no_room_for(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 150);
    assert_says(push(c, 2, 0, A, false), "KEEP 2, RECEIPT 2");
    assert_says(push(c, 1, 0, A, false), "REFUSE 1");
    assert_int_equal(push(c, 1, 0, A, false).at[0].status, PEN_AGAIN);
    assert_says(push(c, 0, 0, A, false), "FOLD 0, RECEIPT 0");
    assert_says(push(c, 1, 0, A, false), "FOLD 1, FOLD 2, RECEIPT 1, SUMMED -1");
    shard_core_destroy(c);
}

static void test_core_prepares_a_partition_with_its_last_chunk(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    for (int32_t r = 0; r < RANKS; r++) push(c, r, 0, A, false);
    push(c, 0, 0, B, false);
    push(c, 1, 0, B, false);
    const shard_core_actions a = push(c, 2, 0, B, false);
    assert_says(a, "FOLD 2, RECEIPT 2, SUMMED -1, PREPARED -1");
    assert_int_equal(a.at[3].index, 0);
    assert_false(shard_core_is_prepared(c, 0, 0));
    shard_core_vote_is(c, 0, 77);
    assert_true(shard_core_is_prepared(c, 0, 0));
    assert_says(push(c, 1, 0, B, false), "PREPARED 1"); /* a repeat */
    assert_says(push(c, 1, 1, B, false), "REFUSE 1");   /* a step too early */
    shard_core_destroy(c);
}

static shard_core *prepared(uint64_t hash)
{
    shard_core *c = start("bsp", true, 1000);
    for (int32_t r = 0; r < RANKS; r++) push(c, r, 0, A, false);
    for (int32_t r = 0; r < RANKS; r++) push(c, r, 0, B, false);
    shard_core_vote_is(c, 0, hash);
    return c;
}

static void test_core_commits_with_the_first_valid_decision_only(void **state)
{
    (void)state;
    shard_core *c          = prepared(77);
    wire_decision decision = {.outcome = PEN_APPLIED, .clip = 1, .gscale = 0.5, .norm = 2};
    assert_int_equal(shard_core_decide(c, 0, 0, 78, &decision, 10).at[0].status, PEN_MISMATCH);
    decision.applied = 1;
    assert_int_equal(shard_core_decide(c, 0, 0, 77, &decision, 10).at[0].status, PEN_MISMATCH);
    decision.applied = 0;
    assert_says(shard_core_decide(c, 0, 0, 77, &decision, 10), "COMMIT -1");
    assert_int_equal(shard_core_applied(c), 1);
    assert_says(shard_core_decide(c, 0, 0, 77, &decision, 10), "");
    decision.gscale = 0.25;
    assert_int_equal(shard_core_decide(c, 0, 0, 77, &decision, 10).at[0].status, PEN_MISMATCH);
    assert_says(push(c, 1, 0, A, false), "PREPARED 1"); /* it may have lost the record */
    assert_says(push(c, 0, 1, A, false), "FOLD 0, RECEIPT 0");
    shard_core_destroy(c);
}

static void test_core_accepts_one_decision_for_all_partitions_of_a_step(void **state)
{
    (void)state;
    shard_core *c          = prepared(77);
    wire_decision decision = {.outcome = PEN_APPLIED, .clip = 1, .gscale = 0.5, .norm = 2};
    for (int32_t r = 0; r < RANKS; r++) push(c, r, 0, C, false);
    shard_core_vote_is(c, 1, 88);
    assert_says(shard_core_decide(c, 0, 0, 77, &decision, 10), "COMMIT -1");
    decision.outcome = PEN_SKIPPED_NONFINITE;
    assert_int_equal(shard_core_decide(c, 1, 0, 88, &decision, 10).at[0].status, PEN_MISMATCH);
    shard_core_destroy(c);
}

static void test_core_skip_ends_the_step_and_counts_no_update(void **state)
{
    (void)state;
    shard_core *c                = prepared(77);
    const wire_decision decision = {.outcome = PEN_SKIPPED_NONFINITE, .clip = 1};
    assert_says(shard_core_decide(c, 0, 0, 77, &decision, 10), "COMMIT -1");
    assert_int_equal(shard_core_applied(c), 0);
    assert_int_equal(shard_core_round(c, A), 1);
    shard_core_destroy(c);
}

static void test_core_pull_after_a_decision_is_of_that_step_only(void **state)
{
    (void)state;
    shard_core *c                = prepared(77);
    const wire_decision decision = {.outcome = PEN_APPLIED, .clip = 1, .gscale = 0.5};
    shard_core_pull_event pull   = {.rank = 1, .peer = 11, .chunk = A, .seq = 0, .decided = true};
    assert_says(shard_core_pull(c, &pull), "REFUSE 1");
    shard_core_decide(c, 0, 0, 77, &decision, 10);
    assert_says(shard_core_pull(c, &pull), "SERVE 1");
    assert_says(shard_core_pull(c, &pull), "SERVE 1"); /* a retry */
    pull.seq = 1;
    assert_says(shard_core_pull(c, &pull), "REFUSE 1");
    shard_core_destroy(c);
}

static void test_core_eager_updates_and_serves_all_at_once(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    assert_says(push(c, 1, 0, B, true), "KEEP 1, RECEIPT 1");
    assert_says(push(c, 0, 0, B, true), "FOLD 0, FOLD 1, RECEIPT 0");
    assert_says(push(c, 0, 0, B, true), "RECEIPT 0");
    assert_says(push(c, 2, 0, B, true), "FOLD 2, UPDATE -1, SERVE 2, SERVE 0, SERVE 1");
    assert_says(push(c, 0, 0, B, true), "SERVE 0");
    shard_core_destroy(c);
}

static void test_core_ssp_serves_up_to_its_bound_and_then_holds(void **state)
{
    (void)state;
    shard_core *c = start("ssp s=1", true, 0);
    assert_says(push(c, 0, 0, A, true), "UPDATE 0, SERVE 0");
    assert_says(push(c, 0, 1, A, true), "UPDATE 0, HELD 0, RECEIPT 0");
    assert_says(push(c, 0, 1, A, true), "RECEIPT 0"); /* a repeat is not applied, but held */
    assert_says(push(c, 1, 0, A, true), "UPDATE 1, SERVE 1");
    const shard_core_actions a = push(c, 2, 0, A, true);
    assert_says(a, "UPDATE 2, SERVE 2, SERVE 0");
    assert_int_equal(a.at[2].staleness, 1);
    assert_says(push(c, 0, 3, A, true), "REFUSE 0"); /* a gap */
    shard_core_destroy(c);
}

static void test_core_ssp_death_of_the_slowest_frees_waiting_ranks(void **state)
{
    (void)state;
    shard_core *c = start("ssp s=0", true, 0);
    push(c, 0, 0, A, true);
    push(c, 1, 0, A, true);
    const uint64_t incarnation[RANKS] = {50, 51, 0};
    bool changed;
    shard_core_epoch(c, TERM, EPOCH + 1, incarnation, RANKS, &changed);
    assert_true(changed);
    assert_says(shard_core_restart(c, A), "SERVE 1, SERVE 0");
    pen_error why;
    assert_int_equal(shard_core_admit(c, 2, 52, TERM, EPOCH + 1, &why), PEN_NOT_A_MEMBER);
    shard_core_destroy(c);
}

static void test_core_restart_drops_staged_pushes_and_accepts_them_again(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    push(c, 0, 0, A, false);
    push(c, 2, 0, A, false);
    const uint64_t incarnation[RANKS] = {50, 0, 52};
    bool changed;
    shard_core_epoch(c, TERM, EPOCH + 1, incarnation, RANKS, &changed);
    assert_true(changed);
    shard_core_abandon(c);
    assert_says(shard_core_restart(c, A), "DROP -1");
    assert_int_equal(shard_core_parked_bytes(c), 0);
    assert_says(push(c, 2, 0, A, false), "KEEP 2, RECEIPT 2");
    assert_says(push(c, 0, 0, A, false), "FOLD 0, FOLD 2, RECEIPT 0, SUMMED -1");
    shard_core_destroy(c);
}

static void test_core_admits_members_of_this_epoch_only(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 0);
    pen_error why;
    assert_int_equal(shard_core_admit(c, 1, 51, TERM, EPOCH, &why), PEN_OK);
    assert_int_equal(shard_core_admit(c, 1, 50, TERM, EPOCH, &why), PEN_NOT_A_MEMBER);
    assert_int_equal(shard_core_admit(c, 3, 53, TERM, EPOCH, &why), PEN_NOT_A_MEMBER);
    assert_int_equal(shard_core_admit(c, -1, 50, TERM, EPOCH, &why), PEN_NOT_A_MEMBER);
    assert_int_equal(shard_core_admit(c, 1, 50, TERM, EPOCH - 1, &why), PEN_NOT_A_MEMBER);
    assert_int_equal(shard_core_admit(c, 1, 51, TERM, EPOCH - 1, &why), PEN_AGAIN);
    assert_string_equal(why.text, "epoch 0 is over");
    assert_int_equal(shard_core_admit(c, 1, 51, TERM - 1, EPOCH + 5, &why), PEN_AGAIN);
    assert_int_equal(shard_core_admit(c, 1, 51, TERM, EPOCH + 1, &why), PEN_AGAIN);
    assert_int_equal(shard_core_admit(c, 1, 51, TERM + 1, 0, &why), PEN_AGAIN);
    shard_core_destroy(c);
}

static void test_core_holds_a_bounded_number_of_answers(void **state)
{
    (void)state;
    shard_core *c              = start("ssp s=0", true, 0);
    shard_core_pull_event pull = {.rank = 0, .peer = 10, .chunk = A};
    push(c, 0, 0, A, false);
    for (pull.seq = 0; pull.seq < CORE_WAITING_PER_RANK_MAX; pull.seq++)
        assert_says(shard_core_pull(c, &pull), "HELD 0");
    assert_int_equal(shard_core_pull(c, &pull).at[0].status, PEN_AGAIN);
    shard_core_peer_down(c, 10);
    assert_says(shard_core_pull(c, &pull), "HELD 0");
    shard_core_destroy(c);
}

static void test_core_refuses_a_tensor_that_is_trained_in_two_ways(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    for (int32_t r = 0; r < RANKS; r++) push(c, r, 0, A, true);
    const shard_core_actions a = push(c, 0, 0, A, false);
    assert_says(a, "REFUSE 0");
    assert_int_equal(a.at[0].status, PEN_WRONG_STATE);
    assert_string_equal(a.at[0].reason, "'a' is trained by both pen_push_pull() and "
                                        "pen_step_end(); use one of them in a job");
    shard_core_destroy(c);
}

static void test_core_names_the_worker_whose_push_others_wait_for(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    uint64_t step;
    uint32_t chunk;
    assert_false(shard_core_owes(c, 1, &step, &chunk));
    push(c, 0, 0, B, false);
    push(c, 0, 0, C, false);
    push(c, 1, 0, B, false);
    assert_true(shard_core_owes(c, 1, &step, &chunk));
    assert_int_equal(chunk, C);
    assert_true(shard_core_owes(c, 2, &step, &chunk));
    assert_int_equal(chunk, B);
    assert_false(shard_core_owes(c, 0, &step, &chunk));
    shard_core_destroy(c);
}

/* ---- node sums ------------------------------------------------------------------------------- */
/* Ranks 0 and 2 are one node, rank 1 another. */
static shard_core *start_by_node(void)
{
    static const int32_t node[RANKS] = {0, 1, 0};
    shard_core *c                    = start("bsp", true, 1000);
    shard_core_nodes(c, node, RANKS);
    inputs.is_node_sum = true;
    return c;
}

/* Ranks 0 and 2 are on one node, whose number is the higher one; rank 1 is on another. */
static shard_core *start_on_nodes(sum_order order)
{
    static const int32_t node[RANKS]  = {5, 3, 5};
    const uint64_t incarnation[RANKS] = {50, 51, 52};
    bool changed;
    shard_core *c = start_by("bsp", order, 1000);
    shard_core_nodes(c, node, RANKS);
    shard_core_epoch(c, TERM, EPOCH + 1, incarnation, RANKS, &changed);
    for (uint32_t k = 0; k < CHUNKS; k++) shard_core_restart(c, k);
    return c;
}

static void by_node_each_node_is_summed_first_and_nodes_follow_their_lowest_ranks(void **state)
{
    (void)state;
    shard_core *c = start_on_nodes(SUMS_BY_NODE);
    assert_says(push(c, 1, 0, A, false), "KEEP 1, RECEIPT 1");
    assert_says(push(c, 0, 0, A, false), "FOLD 0, RECEIPT 0");
    assert_says(push(c, 2, 0, A, false), "FOLD 2, NODE 2, FOLD 1, NODE 1, RECEIPT 2, SUMMED -1");
    shard_core_destroy(c);
    c                  = start_on_nodes(SUMS_BY_NODE); /* likewise if the nodes push their sums */
    inputs.is_node_sum = true;
    push(c, 1, 0, B, false);
    assert_says(push(c, 2, 0, B, false), "FOLD 2, FOLD 1, RECEIPT 2, SUMMED -1");
    shard_core_destroy(c);
    c = start_on_nodes(SUMS_BY_RANK);
    push(c, 1, 0, A, false);
    assert_says(push(c, 0, 0, A, false), "FOLD 0, FOLD 1, RECEIPT 0");
    assert_says(push(c, 2, 0, A, false), "FOLD 2, RECEIPT 2, SUMMED -1");
    shard_core_destroy(c);
}

static void by_node_weights_are_added_inside_each_node_first(void **state)
{
    (void)state;
    static const double weight[RANKS] = {0.1, 0.1, 1.1};
    for (int order = SUMS_BY_RANK; order <= SUMS_BY_NODE; order++) {
        shard_core *c = start_on_nodes((sum_order)order);
        for (int32_t r = 0; r < RANKS; r++) {
            inputs.weight = weight[r];
            push(c, r, 0, A, false);
        }
        const double by_rank = 0.1 + 0.1 + 1.1, by_node = 0.1 + 1.1 + 0.1;
        assert_true(by_rank != by_node);
        assert_true(shard_core_weight_sum(c, 0) == (order == SUMS_BY_NODE ? by_node : by_rank));
        shard_core_destroy(c);
    }
}

static void one_contribution_of_each_node_completes_a_round(void **state)
{
    (void)state;
    shard_core *c = start_by_node();
    /* Chunk A has number 0: rank 0 pushes it for its node, rank 1 for its own. */
    assert_says(push(c, 1, 0, A, false), "KEEP 1, RECEIPT 1");
    assert_says(push(c, 0, 0, A, false), "FOLD 0, FOLD 1, RECEIPT 0, SUMMED -1");
    /* Chunk B has number 1: the second of ranks 0 and 2. */
    assert_says(push(c, 2, 0, B, false), "KEEP 2, RECEIPT 2");
    assert_says(push(c, 1, 0, B, false), "FOLD 1, FOLD 2, RECEIPT 1, SUMMED -1, PREPARED -1");
    shard_core_destroy(c);
}

static void the_weight_of_a_node_counts_once(void **state)
{
    (void)state;
    shard_core *c = start_by_node();
    inputs.weight = 5;
    push(c, 0, 0, A, false);
    push(c, 2, 0, B, false);
    inputs.weight = 0.25;
    push(c, 1, 0, A, false);
    assert_true(shard_core_weight_sum(c, 0) == 5.25);
    shard_core_destroy(c);
}

static void a_push_that_is_an_update_of_its_own_is_weighted_relative_to_the_others(void **state)
{
    (void)state;
    shard_core *c = start_by_node();
    assert_true(shard_core_relative_weight(c, 0, 128) == 1); /* the only one so far */
    assert_true(shard_core_relative_weight(c, 1, 128) == 1);
    assert_true(shard_core_relative_weight(c, 2, 128) == 1);
    assert_true(shard_core_relative_weight(c, 0, 0) == 0); /* no data: no word about the others */
    assert_true(shard_core_relative_weight(c, 1, 128) == 1);
    assert_true(shard_core_relative_weight(c, 2, 512) == 2); /* 512 of a mean of 256 */
    assert_true(shard_core_relative_weight(c, 1, 128) == 0.5);
    shard_core_destroy(c);
}

static void ranks_whose_node_another_represents_are_not_waited_for(void **state)
{
    (void)state;
    shard_core *c = start_by_node();
    uint64_t step;
    uint32_t chunk;
    int32_t missing[RANKS];
    uint32_t n;
    push(c, 0, 0, A, false);
    assert_false(shard_core_owes(c, 2, &step, &chunk));
    assert_true(shard_core_owes(c, 1, &step, &chunk));
    const shard_core_pull_event ask = {.rank = 0, .peer = 10, .chunk = A, .seq = 0};
    shard_core_inquire(c, &ask, missing, &n);
    assert_int_equal(n, 1);
    assert_int_equal(missing[0], 1);
    shard_core_destroy(c);
}

static void rounds_of_nodes_follow_one_another(void **state)
{
    (void)state;
    shard_core *c                = start_by_node();
    const wire_decision decision = {.outcome = PEN_APPLIED, .clip = 1, .gscale = 0.5};
    wire_decision next           = decision;
    next.applied                 = 1;
    for (uint64_t s = 0; s < 2; s++) {
        push(c, 0, s, A, false);
        push(c, 1, s, A, false);
        push(c, 1, s, B, false);
        push(c, 2, s, B, false);
        shard_core_vote_is(c, 0, 77 + s);
        assert_says(shard_core_decide(c, 0, s, 77 + s, s == 0 ? &decision : &next, 10),
                    "COMMIT -1");
        assert_int_equal(shard_core_round(c, A), s + 1);
    }
    shard_core_destroy(c);
}

static void a_sum_from_the_wrong_rank_of_a_node_is_refused(void **state)
{
    (void)state;
    shard_core *c              = start_by_node();
    const shard_core_actions a = push(c, 2, 0, A, false);
    assert_says(a, "REFUSE 2");
    assert_int_equal(a.at[0].status, PEN_MISMATCH);
    assert_non_null(strstr(a.at[0].reason, "a node sum that another rank must send"));
    shard_core_destroy(c);
}

static void a_sum_of_a_node_and_a_gradient_do_not_mix(void **state)
{
    (void)state;
    shard_core *c = start_by_node();
    push(c, 0, 0, A, false);
    inputs.is_node_sum         = false;
    const shard_core_actions a = push(c, 1, 0, A, false);
    assert_says(a, "REFUSE 1");
    assert_int_equal(a.at[0].status, PEN_MISMATCH);
    assert_non_null(strstr(a.at[0].reason, "rank 1 pushes its own gradient"));
    shard_core_destroy(c);
}

/* ---- following ------------------------------------------------------------------------------- */
static const wire_decision applied = {.outcome = PEN_APPLIED, .gscale = 1, .clip = 1};

static void test_core_that_followed_commits_and_answers_repeats_like_its_primary(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    assert_true(shard_core_follow_prepared(c, 0, 0, 2, &inputs, 77, 0));
    assert_false(shard_core_follow_prepared(c, 0, 1, 2, &inputs, 78, 0)); /* not the open step */
    assert_int_equal(shard_core_step_rank(c, 0), 2);
    shard_core_restage(c); /* it begins to serve: the prepared state stays */
    assert_says(push(c, 1, 0, A, false), "PREPARED 1");
    assert_says(push(c, 1, 0, C, false), "KEEP 1, RECEIPT 1");
    assert_says(shard_core_decide(c, 0, 0, 77, &applied, 10), "COMMIT -1");
    assert_int_equal(shard_core_partition_step(c, 0), 1);
    assert_says(push(c, 1, 0, B, false), "PREPARED 1"); /* its record outlives the commit */
    assert_says(push(c, 0, 1, A, false), "FOLD 0, RECEIPT 0");
    shard_core_destroy(c);
}

static void test_core_that_stops_being_primary_forgets_unshared_state(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 1000);
    push(c, 0, 0, A, false);
    push(c, 2, 0, A, false);
    push(c, 0, 0, C, false);
    shard_core_restage(c);
    assert_int_equal(shard_core_parked_bytes(c), 0);
    assert_int_equal(shard_core_clocks(c, A)[0], 0);
    assert_says(push(c, 0, 0, A, false), "FOLD 0, RECEIPT 0");
    shard_core_destroy(c);
}

static void test_core_counts_reported_single_pushes_and_rounds(void **state)
{
    (void)state;
    shard_core *c = start("ssp s=5", true, 0);
    assert_true(shard_core_follow_apply(c, A, 1, 0));
    assert_false(shard_core_follow_apply(c, A, 1, 0));
    assert_false(shard_core_follow_apply(c, A, 1, 2));
    assert_false(shard_core_follow_apply(c, A, RANKS, 0));
    assert_says(push(c, 1, 0, A, false), "APPLIED 1"); /* a repeat */
    assert_true(push(c, 1, 0, A, false).at[0].repeated);
    assert_says(push(c, 1, 1, A, false), "UPDATE 1, APPLIED 1");
    uint64_t least = 9;
    assert_true(shard_core_least_clock(c, &least));
    assert_int_equal(least, 0);
    shard_core_destroy(c);

    c = start("bsp", true, 0);
    assert_true(shard_core_follow_update(c, B, 0));
    assert_false(shard_core_follow_update(c, B, 0));
    assert_int_equal(shard_core_round(c, B), 1);
    assert_int_equal(shard_core_clocks(c, B)[2], 1);
    shard_core_destroy(c);
}

static void test_core_joiner_starts_beside_the_slowest_existing_rank(void **state)
{
    (void)state;
    shard_core *c = start("ssp s=5", true, 0);
    for (uint64_t seq = 0; seq < 3; seq++) push(c, 0, seq, A, false);
    for (uint64_t seq = 0; seq < 2; seq++) push(c, 1, seq, A, false);
    const bool beside[RANKS] = {true, true, false};
    shard_core_join(c, 2, beside);
    assert_int_equal(shard_core_clocks(c, A)[2], 2);
    const shard_core_pull_event first = {.rank = 2, .peer = 12, .chunk = A, .initial = true};
    const shard_core_actions a        = shard_core_pull(c, &first);
    assert_says(a, "SERVE 2");
    assert_int_equal(a.at[0].seq, 2); /* the start of its pushes */
    assert_says(push(c, 2, 2, A, false), "UPDATE 2, APPLIED 2");
    const bool nobody[RANKS] = {false};
    shard_core_join(c, 1, nobody);
    assert_int_equal(shard_core_clocks(c, A)[1], shard_core_round(c, A));
    shard_core_destroy(c);
}

static void test_core_snapshots_are_requested_by_the_first_live_rank(void **state)
{
    (void)state;
    shard_core *c = start("bsp", true, 0);
    assert_true(shard_core_is_first(c, 0));
    assert_false(shard_core_is_first(c, 1));
    const uint64_t incarnation[RANKS] = {0, 51, 52};
    bool changed;
    shard_core_epoch(c, TERM, EPOCH + 1, incarnation, RANKS, &changed);
    assert_true(shard_core_is_first(c, 1));
    assert_false(shard_core_is_first(c, 0));
    shard_core_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_that_followed_commits_and_answers_repeats_like_its_primary),
        cmocka_unit_test(test_core_that_stops_being_primary_forgets_unshared_state),
        cmocka_unit_test(test_core_counts_reported_single_pushes_and_rounds),
        cmocka_unit_test(test_core_joiner_starts_beside_the_slowest_existing_rank),
        cmocka_unit_test(test_core_snapshots_are_requested_by_the_first_live_rank),
        cmocka_unit_test(test_core_folds_in_rank_order_and_buffers_early_ranks),
        cmocka_unit_test(test_core_fast_mode_folds_on_arrival),
        cmocka_unit_test(test_core_does_not_record_a_push_it_has_no_room_for),
        cmocka_unit_test(test_core_prepares_a_partition_with_its_last_chunk),
        cmocka_unit_test(test_core_commits_with_the_first_valid_decision_only),
        cmocka_unit_test(test_core_accepts_one_decision_for_all_partitions_of_a_step),
        cmocka_unit_test(test_core_skip_ends_the_step_and_counts_no_update),
        cmocka_unit_test(test_core_pull_after_a_decision_is_of_that_step_only),
        cmocka_unit_test(test_core_eager_updates_and_serves_all_at_once),
        cmocka_unit_test(test_core_ssp_serves_up_to_its_bound_and_then_holds),
        cmocka_unit_test(test_core_ssp_death_of_the_slowest_frees_waiting_ranks),
        cmocka_unit_test(test_core_restart_drops_staged_pushes_and_accepts_them_again),
        cmocka_unit_test(test_core_admits_members_of_this_epoch_only),
        cmocka_unit_test(test_core_holds_a_bounded_number_of_answers),
        cmocka_unit_test(test_core_refuses_a_tensor_that_is_trained_in_two_ways),
        cmocka_unit_test(test_core_names_the_worker_whose_push_others_wait_for),
        cmocka_unit_test(by_node_each_node_is_summed_first_and_nodes_follow_their_lowest_ranks),
        cmocka_unit_test(by_node_weights_are_added_inside_each_node_first),
        cmocka_unit_test(one_contribution_of_each_node_completes_a_round),
        cmocka_unit_test(the_weight_of_a_node_counts_once),
        cmocka_unit_test(a_push_that_is_an_update_of_its_own_is_weighted_relative_to_the_others),
        cmocka_unit_test(ranks_whose_node_another_represents_are_not_waited_for),
        cmocka_unit_test(rounds_of_nodes_follow_one_another),
        cmocka_unit_test(a_sum_from_the_wrong_rank_of_a_node_is_refused),
        cmocka_unit_test(a_sum_of_a_node_and_a_gradient_do_not_mix),
    };
    return cmocka_run_group_tests_name("shard_core", tests, NULL, NULL);
}
