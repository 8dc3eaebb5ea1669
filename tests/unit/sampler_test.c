/* sampler_test.c - the samples of each rank, compared with torch's DistributedSampler. */
#include "penstock.h"
#include "tests/support/golden_training.h"
#include "worker/context.h"
#include "worker/data/mt19937.h"
#include "worker/data/permutation.h"
#include "worker/data/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TAKEN_MAX = 20000, RANKS_MAX = 16 };

/* FNV-1a over the bytes of numbers, as in make_golden_training.py. */
static uint64_t digest_add(uint64_t digest, uint64_t number)
{
    for (int i = 0; i < 8; i++) digest = (digest ^ (number >> 8 * i & 255)) * 0x100000001b3u;
    return digest;
}
static const uint64_t digest_first = 0xcbf29ce484222325u;

/* ---- random numbers -------------------------------------------------------------------------- */
static void test_twister_draws_what_torch_draws(void **state)
{
    (void)state;
    mt19937 g, halves;
    uint64_t digest = digest_first;
    mt19937_seed(&g, 5489);
    mt19937_seed(&halves, 5489);
    for (int i = 0; i < 1400; i += 2) {
        const uint64_t both = mt19937_next64(&halves);
        const uint32_t a = mt19937_next(&g), b = mt19937_next(&g);
        assert_true(both == ((uint64_t)a << 32 | b));
        if (i < 4) assert_true(a == golden_twister[i] && b == golden_twister[i + 1]);
        digest = digest_add(digest_add(digest, a), b);
    }
    assert_true(digest == golden_twister_digest);
}

static uint64_t digest_of(const permutation *p)
{
    uint64_t digest = digest_first;
    for (uint64_t i = 0; i < p->n; i++) digest = digest_add(digest, permutation_at(p, i));
    return digest;
}

static void test_permutations_are_those_of_torch_randperm(void **state)
{
    (void)state;
    permutation p = {0};
    pen_error why;
    for (size_t i = 0; i < sizeof golden_permutations / sizeof golden_permutations[0]; i++) {
        const golden_permutation *g = &golden_permutations[i];
        assert_int_equal(permutation_draw(&p, g->n, g->seed, &why), PEN_OK);
        assert_true(digest_of(&p) == g->digest);
    }
    permutation_free(&p);
}

static void test_permutations_of_very_large_lists_take_64_bits_for_each_index(void **state)
{
    (void)state;
    permutation p = {0};
    pen_error why;
    const size_t n = sizeof golden_large_permutations / sizeof golden_large_permutations[0];
    for (size_t i = 0; i < n; i++) {
        const golden_permutation *g = &golden_large_permutations[i];
        assert_int_equal(permutation_draw_large(&p, g->n, g->seed, &why), PEN_OK);
        assert_true(digest_of(&p) == g->digest);
    }
    permutation_free(&p);
    assert_true(PERMUTATION_LARGE == 214748364);
}

static void test_permutations_without_memory_say_how_much_they_need(void **state)
{
    (void)state;
    permutation p = {0};
    pen_error why;
    assert_int_equal(permutation_draw(&p, (uint64_t)1 << 60, 0, &why), PEN_NO_MEMORY);
    assert_string_equal(why.text,
                        "no memory for the order of 1152921504606846976 samples: a shuffle needs 8 "
                        "bytes for each; keep_order=1 needs none");
    assert_true(p.n == 0 && p.narrow == NULL && p.wide == NULL);
}

/* ---- ranks ----------------------------------------------------------------------------------- */
static pen_sampler *make(pen_sampler_desc d)
{
    pen_sampler *s;
    if (pen_sampler_new(NULL, &d, &s) != PEN_OK) fail_msg("%s", pen_last_error(NULL));
    return s;
}

/* The rest of the epoch, a few at a time. */
static size_t take_all(pen_sampler *s, int64_t *taken, size_t at_a_time)
{
    size_t n = 0, got;
    while (pen_sampler_next(s, taken + n, at_a_time, &got) == PEN_OK) {
        assert_true(got > 0 && got <= at_a_time);
        n += got;
    }
    assert_int_equal(got, 0);
    return n;
}

static uint64_t digest_ranks(const golden_sampler *g)
{
    static int64_t taken[TAKEN_MAX];
    uint64_t digest = digest_first;
    for (int rank = 0; rank < g->world; rank++) {
        pen_sampler *s = make((pen_sampler_desc){.n          = g->n,
                                                 .world      = g->world,
                                                 .rank       = rank,
                                                 .seed       = g->seed,
                                                 .keep_order = !g->shuffles,
                                                 .drop_last  = g->drops_last});
        assert_int_equal(pen_sampler_seek(s, g->epoch, 0), PEN_OK);
        const size_t n = take_all(s, taken, (size_t)(1 + g->n % 13));
        digest         = digest_add(digest, n);
        for (size_t i = 0; i < n; i++) digest = digest_add(digest, (uint64_t)taken[i]);
        pen_sampler_free(s);
    }
    return digest;
}

static void test_samplers_take_what_torch_takes_in_200_random_cases(void **state)
{
    (void)state;
    const size_t n = sizeof golden_samplers / sizeof golden_samplers[0];
    assert_true(n >= 200);
    for (size_t i = 0; i < n; i++) {
        const golden_sampler *g = &golden_samplers[i];
        if (digest_ranks(g) != g->digest)
            fail_msg("case %zu: n %lld, %d ranks, epoch %lld differ from torch", i, (long long)g->n,
                     g->world, (long long)g->epoch);
    }
    print_message("%zu cases agree with torch\n", n);
}

static void test_samplers_take_the_samples_of_the_tables(void **state)
{
    (void)state;
    static const struct {
        int n, world, shuffles, epoch, drops;
        const char *ranks;
    } rows[] = {{10, 4, 0, 0, 0, "0 4 8 | 1 5 9 | 2 6 0 | 3 7 1 |"},
                {10, 4, 0, 0, 1, "0 4 | 1 5 | 2 6 | 3 7 |"},
                {10, 4, 1, 0, 0, "4 3 6 | 1 9 2 | 7 0 4 | 5 8 1 |"},
                {10, 4, 1, 0, 1, "4 3 | 1 9 | 7 0 | 5 8 |"},
                {10, 4, 1, 1, 0, "5 0 7 | 6 8 4 | 1 9 5 | 2 3 6 |"},
                {10, 4, 1, 1, 1, "5 0 | 6 8 | 1 9 | 2 3 |"},
                {10, 2, 1, 0, 0, "4 7 3 0 6 | 1 5 9 8 2 |"},
                {10, 2, 1, 1, 0, "5 1 0 9 7 | 6 2 8 3 4 |"},
                {3, 4, 0, 0, 0, "0 | 1 | 2 | 0 |"},
                {3, 4, 1, 0, 0, "2 | 0 | 1 | 2 |"},
                {3, 4, 1, 1, 0, "1 | 2 | 0 | 1 |"},
                {3, 4, 0, 0, 1, "| | | |"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256] = "";
        size_t at      = 0;
        int64_t taken[16];
        for (int rank = 0; rank < rows[i].world; rank++) {
            pen_sampler *s = make((pen_sampler_desc){.n          = rows[i].n,
                                                     .world      = rows[i].world,
                                                     .rank       = rank,
                                                     .keep_order = !rows[i].shuffles,
                                                     .drop_last  = rows[i].drops});
            assert_int_equal(pen_sampler_seek(s, rows[i].epoch, 0), PEN_OK);
            const size_t n = take_all(s, taken, 2);
            for (size_t k = 0; k < n; k++)
                at += (size_t)snprintf(text + at, sizeof text - at, "%lld ", (long long)taken[k]);
            at += (size_t)snprintf(text + at, sizeof text - at,
                                   rank + 1 < rows[i].world ? "| " : "|");
            pen_sampler_free(s);
        }
        assert_string_equal(text, rows[i].ranks);
    }
}

static void test_exact_samplers_take_every_sample_once(void **state)
{
    (void)state;
    for (int n = 1; n < 40; n += 3)
        for (int world = 1; world <= 9; world++) {
            int seen[40] = {0};
            int64_t taken[40];
            for (int rank = 0; rank < world; rank++) {
                pen_sampler *s =
                    make((pen_sampler_desc){.n = n, .world = world, .rank = rank, .exact = 1});
                const size_t got = take_all(s, taken, 3);
                assert_in_range(got, n / world, (n + world - 1) / world);
                for (size_t i = 0; i < got; i++) seen[taken[i]]++;
                pen_sampler_free(s);
            }
            for (int i = 0; i < n; i++) assert_int_equal(seen[i], 1);
        }
}

/* ---- the position ---------------------------------------------------------------------------- */
/* Some steps with one number of ranks, the rest with another, from the position of tell(). */
static void move_to_another_world(int n, int before, int steps, int batch, int after)
{
    int seen[128]    = {0};
    int64_t consumed = 0, epoch = 0, taken[128];
    for (int rank = 0; rank < before; rank++) {
        size_t got;
        int64_t at;
        pen_sampler *s =
            make((pen_sampler_desc){.n = n, .world = before, .rank = rank, .exact = 1, .seed = 9});
        assert_int_equal(pen_sampler_seek(s, 4, 0), PEN_OK);
        for (int step = 0; step < steps; step++) {
            if (pen_sampler_next(s, taken, (size_t)batch, &got) == PEN_END) continue;
            for (size_t i = 0; i < got; i++) seen[taken[i]]++;
        }
        assert_int_equal(pen_sampler_tell(s, &epoch, &at), PEN_OK);
        assert_int_equal(epoch, 4);
        assert_true(rank == 0 || at == consumed); /* the same on all ranks */
        consumed = at;
        pen_sampler_free(s);
    }
    for (int rank = 0; rank < after; rank++) {
        pen_sampler *s =
            make((pen_sampler_desc){.n = n, .world = after, .rank = rank, .exact = 1, .seed = 9});
        assert_int_equal(pen_sampler_seek(s, epoch, consumed), PEN_OK);
        const size_t got = take_all(s, taken, 5);
        for (size_t i = 0; i < got; i++) seen[taken[i]]++;
        pen_sampler_free(s);
    }
    for (int i = 0; i < n; i++)
        if (seen[i] != 1)
            fail_msg("sample %d of %d: %d times, %d to %d ranks", i, n, seen[i], before, after);
}

static void test_positions_mean_the_same_to_any_number_of_ranks(void **state)
{
    (void)state;
    for (int before = 1; before <= 5; before++)
        for (int after = 1; after <= 7; after++)
            for (int steps = 0; steps < 6; steps++)
                move_to_another_world(101, before, steps, 3, after);
}

static void test_positions_continue_an_epoch_without_a_gap(void **state)
{
    (void)state;
    for (int drops = 0; drops < 2; drops++) {
        const pen_sampler_desc d = {.n = 50, .world = 4, .rank = 2, .drop_last = drops};
        int64_t whole[20], parts[20], epoch, consumed;
        size_t got;
        pen_sampler *s = make(d);
        const size_t n = take_all(s, whole, 4);
        assert_int_equal(pen_sampler_seek(s, 0, 0), PEN_OK);
        assert_int_equal(pen_sampler_next(s, parts, 5, &got), PEN_OK);
        assert_int_equal(pen_sampler_tell(s, &epoch, &consumed), PEN_OK);
        assert_int_equal(consumed, 20);
        pen_sampler_free(s);
        s = make(d);
        assert_int_equal(pen_sampler_seek(s, epoch, consumed), PEN_OK);
        assert_int_equal(take_all(s, parts + 5, 4), n - 5);
        assert_memory_equal(parts, whole, n * sizeof whole[0]);
        pen_sampler_free(s);
    }
}

static void test_samplers_end_an_epoch_until_another_is_set(void **state)
{
    (void)state;
    int64_t taken[8], epoch, consumed;
    size_t got     = 7;
    pen_sampler *s = make((pen_sampler_desc){.n = 5, .world = 2, .rank = 1, .drop_last = 1});
    assert_int_equal(pen_sampler_next(s, taken, 8, &got), PEN_OK);
    assert_int_equal(got, 2);
    for (int i = 0; i < 3; i++) {
        got = 7;
        assert_int_equal(pen_sampler_next(s, taken, 8, &got), PEN_END);
        assert_int_equal(got, 0);
    }
    assert_int_equal(pen_sampler_tell(s, &epoch, &consumed), PEN_OK);
    assert_int_equal(consumed, 5); /* dropped samples are not picked up by fewer ranks */
    assert_int_equal(pen_sampler_seek(s, 1, INT64_MAX), PEN_OK);
    assert_int_equal(pen_sampler_next(s, taken, 8, &got), PEN_END);
    assert_int_equal(pen_sampler_seek(s, 1, 0), PEN_OK);
    assert_int_equal(pen_sampler_next(s, taken, 1, &got), PEN_OK);
    pen_sampler_free(s);
}

static void test_samplers_refuse_a_position_of_another_data_set(void **state)
{
    (void)state;
    sampler s;
    pen_error why;
    int64_t index;
    size_t got;
    sampler_init(&s, 100, 0);
    s.at = (sampler_position){.n = 90, .epoch = 2, .consumed = 30};
    assert_int_equal(sampler_next(&s, 1, 0, &index, 1, &got, &why), PEN_MISMATCH);
    assert_string_equal(
        why.text, "this sampler has 100 samples, but the restored position is sample 30 of 90 in "
                  "epoch 2; set a position with pen_sampler_seek()");
    s.at = (sampler_position){.n = 100, .epoch = 2, .consumed = -1};
    assert_int_equal(sampler_next(&s, 1, 0, &index, 1, &got, &why), PEN_MISMATCH);
    sampler_fini(&s);
}

/* ---- with a context -------------------------------------------------------------------------- */
static void test_samplers_of_a_context_take_its_world_and_its_seed(void **state)
{
    (void)state;
    static const char *const settings[] = {"seed=1", NULL};
    static const int64_t want[10] = {5, 6, 1, 2, 0, 8, 9, 3, 7, 4}; /* torch.randperm, seed 1 */
    int64_t taken[10];
    pen_ctx *ctx;
    pen_sampler *s;
    pen_log_set(NULL, NULL, -1);
    assert_int_equal(pen_init(settings, &ctx), PEN_OK);
    assert_int_equal(pen_sampler_new(ctx, &(pen_sampler_desc){.n = 10}, &s), PEN_OK);
    assert_int_equal(take_all(s, taken, 4), 10);
    assert_memory_equal(taken, want, sizeof want);
    pen_sampler_free(s);
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

/* As pen_step_begin() does when members have changed. */
static void test_samplers_of_a_context_follow_its_members(void **state)
{
    (void)state;
    int64_t taken[3];
    size_t got;
    pen_ctx *ctx;
    pen_sampler *s;
    pen_log_set(NULL, NULL, -1);
    assert_int_equal(pen_init(NULL, &ctx), PEN_OK);
    assert_int_equal(pen_sampler_new(ctx, &(pen_sampler_desc){.n = 20, .keep_order = 1}, &s),
                     PEN_OK);
    assert_int_equal(pen_sampler_next(s, taken, 3, &got), PEN_OK);
    assert_true(taken[0] == 0 && taken[1] == 1 && taken[2] == 2);
    pen_group *alone = ctx->world, *three = group_create_world(ctx, 3, 1);
    ctx->world = three;
    assert_int_equal(pen_sampler_next(s, taken, 3, &got), PEN_OK);
    assert_true(taken[0] == 4 && taken[1] == 7 && taken[2] == 10);
    ctx->world = alone;
    assert_int_equal(pen_sampler_next(s, taken, 3, &got), PEN_OK);
    assert_true(taken[0] == 12 && taken[1] == 13 && taken[2] == 14);
    group_destroy(three);
    pen_sampler_free(s);
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

static void refuses(pen_sampler_desc d, const char *sentence)
{
    pen_sampler *s = NULL;
    assert_int_equal(pen_sampler_new(NULL, &d, &s), PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL), sentence);
    assert_null(s);
}

static void test_samplers_refuse_invalid_arguments(void **state)
{
    (void)state;
    refuses((pen_sampler_desc){.world = 1},
            "pen_sampler_new: invalid n 0; expected 1 to 2^48 samples");
    refuses((pen_sampler_desc){.n = 3}, "pen_sampler_new: missing world and rank; set them when "
                                        "there is no context (world 1, rank 0 for one process)");
    refuses((pen_sampler_desc){.n = 3, .world = 2, .rank = 2},
            "pen_sampler_new: invalid rank 2 of world 2; use a rank below world, or 0, 0 for those "
            "of the context");
    refuses((pen_sampler_desc){.n = 3, .world = 2, .drop_last = 1, .exact = 1},
            "pen_sampler_new: drop_last and exact contradict each other; choose one");
    refuses((pen_sampler_desc){.n = 3, .world = 2, .reserved = {0, 4}},
            "pen_sampler_desc has garbage in reserved[1]; initialise it with {0}");
    pen_sampler_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twister_draws_what_torch_draws),
        cmocka_unit_test(test_permutations_are_those_of_torch_randperm),
        cmocka_unit_test(test_permutations_of_very_large_lists_take_64_bits_for_each_index),
        cmocka_unit_test(test_permutations_without_memory_say_how_much_they_need),
        cmocka_unit_test(test_samplers_take_what_torch_takes_in_200_random_cases),
        cmocka_unit_test(test_samplers_take_the_samples_of_the_tables),
        cmocka_unit_test(test_exact_samplers_take_every_sample_once),
        cmocka_unit_test(test_positions_mean_the_same_to_any_number_of_ranks),
        cmocka_unit_test(test_positions_continue_an_epoch_without_a_gap),
        cmocka_unit_test(test_samplers_end_an_epoch_until_another_is_set),
        cmocka_unit_test(test_samplers_refuse_a_position_of_another_data_set),
        cmocka_unit_test(test_samplers_of_a_context_take_its_world_and_its_seed),
        cmocka_unit_test(test_samplers_of_a_context_follow_its_members),
        cmocka_unit_test(test_samplers_refuse_invalid_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
