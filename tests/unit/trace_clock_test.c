/* trace_clock_test.c - the offset between two clocks, measured over asymmetric paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/trace/trace_clock.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000u

typedef struct {
    uint64_t draws;
    int64_t ahead_ns; /* their clock at our time 0 */
    double rate;      /* of their clock, minus 1 */
} world;

static uint64_t draw(world *w, uint64_t below)
{
    w->draws = w->draws * 6364136223846793005u + 1442695040888963407u;
    return (w->draws >> 33) % below;
}

static uint64_t theirs(const world *w, uint64_t ours)
{
    return ours + (uint64_t)(w->ahead_ns + (int64_t)(w->rate * (double)ours));
}

/* A round trip whose two directions are independent; at times one waits in a queue. */
static uint64_t trip(world *w, trace_clock *c, uint64_t at, uint64_t out, uint64_t back)
{
    const uint64_t there = at + out + (draw(w, 10) == 0 ? draw(w, 20 * MS) : draw(w, out + 1));
    const uint64_t home  = there + back + (draw(w, 10) == 0 ? draw(w, 20 * MS) : draw(w, back + 1));
    trace_clock_note(c, at, theirs(w, there), home);
    return home;
}

static uint32_t finish(const trace_clock *c, trace_clock_sample *s)
{
    const uint32_t n = atomic_load(&c->n);
    memcpy(s, c->sample, n * sizeof *s);
    return trace_clock_prune(s, n);
}

/* The estimate of each moment is within the error it states. */
static uint64_t check_bound(const world *w, const trace_clock_sample *s, uint32_t n, uint64_t end)
{
    const uint64_t error = trace_clock_error(s, n, 0, end);
    for (uint64_t at = 0; at <= end; at += end / 997) {
        const int64_t said = trace_clock_offset(s, n, at), is = (int64_t)(theirs(w, at) - at);
        const uint64_t off = (uint64_t)(said < is ? is - said : said - is);
        assert_in_range(off, 0, error + 1);
    }
    return error;
}

static void test_clock_is_within_its_stated_error_over_any_asymmetric_path(void **state)
{
    (void)state;
    trace_clock *c                  = calloc(1, sizeof *c);
    trace_clock_sample *s           = calloc(TRACE_CLOCK_SAMPLES, sizeof *s);
    static const uint64_t ways[][2] = {
        {50000, 50000}, {10000, 400000}, {3 * MS, 20000}, {1, 1}, {30 * MS, 1 * MS}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        world w     = {.draws = 7 + i, .ahead_ns = (int64_t)(i % 2 ? -5000 : 17) * 1000 * MS};
        uint64_t at = 5000u * 1000 * MS;
        const uint64_t begun = at;
        trace_clock_init(c);
        for (int k = 0; k < 300; k++) at = trip(&w, c, at + 100 * MS, ways[i][0], ways[i][1]);
        const uint32_t n = finish(c, s);
        assert_in_range(n, 1, TRACE_CLOCK_SAMPLES);
        const uint64_t error = trace_clock_error(s, n, begun, at);
        assert_in_range(error, 1, 2 * (ways[i][0] + ways[i][1]) + 200000);
        for (uint64_t t = begun; t < at; t += 33 * MS) {
            const int64_t off = trace_clock_offset(s, n, t) - w.ahead_ns;
            assert_in_range(llabs(off), 0, error);
        }
    }
    free(c);
    free(s);
}

static void test_clock_follows_one_that_runs_faster_for_hours(void **state)
{
    (void)state;
    trace_clock *c        = calloc(1, sizeof *c);
    trace_clock_sample *s = calloc(TRACE_CLOCK_SAMPLES, sizeof *s);
    world w               = {.draws = 3, .ahead_ns = 123456789, .rate = 80e-6};
    uint64_t at           = 1;
    trace_clock_init(c);
    while (at < 3u * 3600 * 1000 * (uint64_t)MS) at = trip(&w, c, at + 1000 * MS, 40000, 90000);
    const uint32_t n     = finish(c, s);
    const uint64_t error = check_bound(&w, s, n, at);
    assert_in_range(n, TRACE_CLOCK_SAMPLES / 8, TRACE_CLOCK_SAMPLES); /* windows were joined */
    assert_in_range(error, 1, 5 * MS); /* it drifted 864 ms meanwhile */
    free(c);
    free(s);
}

static void test_clock_keeps_the_order_of_moments(void **state)
{
    (void)state;
    trace_clock *c        = calloc(1, sizeof *c);
    trace_clock_sample *s = calloc(TRACE_CLOCK_SAMPLES, sizeof *s);
    world w               = {.draws = 11, .ahead_ns = -999, .rate = -90e-6};
    uint64_t at           = 1;
    trace_clock_init(c);
    for (int k = 0; k < 500; k++) at = trip(&w, c, at + 20 * MS, 5 * MS, 9 * MS);
    const uint32_t n = finish(c, s);
    uint64_t last    = 0;
    for (uint64_t t = 1; t < at; t += MS / 7) {
        const uint64_t there = t + (uint64_t)trace_clock_offset(s, n, t) + 1000 * (uint64_t)MS;
        assert_true(there >= last);
        last = there;
    }
    free(c);
    free(s);
}

static void test_clock_drops_samples_that_a_neighbour_bounds_better(void **state)
{
    (void)state;
    trace_clock_sample s[] = {{1000 * MS, 10, 9 * MS}, /* all are busy at the start */
                              {2000 * MS, 20, 50000},  {3000 * MS, 30, 9 * MS},
                              {2000 * MS, 31, 40}, /* not later than the previous one */
                              {4000 * MS, 40, 60000},  {5000 * MS, 50, 8 * MS}};
    assert_int_equal(trace_clock_prune(s, 6), 2);
    assert_int_equal(s[0].offset_ns, 20);
    assert_int_equal(s[1].offset_ns, 40);
    assert_int_equal(trace_clock_offset(s, 2, 0), 20);
    assert_int_equal(trace_clock_offset(s, 2, 3000 * MS), 30);
    assert_int_equal(trace_clock_offset(s, 2, 9000 * (uint64_t)MS), 40);
    assert_int_equal(trace_clock_error(s, 2, 2000 * MS, 4000 * MS), 60000 + 100000);
}

static void test_clock_ignores_impossible_answers(void **state)
{
    (void)state;
    trace_clock *c = calloc(1, sizeof *c);
    trace_clock_init(c);
    trace_clock_note(c, 100, 5000, 99); /* received before it was requested */
    trace_clock_note(c, 100, 0, 120);   /* a scheduler that does not send its time */
    assert_int_equal(atomic_load(&c->n), 0);
    trace_clock_note(c, 100, 5000, 120);
    assert_int_equal(atomic_load(&c->n), 1);
    assert_int_equal(c->sample[0].offset_ns, 4889);
    assert_int_equal(c->sample[0].error_ns, 11);
    trace_clock_init(c);
    trace_clock_is(c, 100, 77); /* the scheduler itself */
    assert_int_equal(trace_clock_error(c->sample, 1, 0, 1000 * (uint64_t)MS), 0);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock_is_within_its_stated_error_over_any_asymmetric_path),
        cmocka_unit_test(test_clock_follows_one_that_runs_faster_for_hours),
        cmocka_unit_test(test_clock_keeps_the_order_of_moments),
        cmocka_unit_test(test_clock_drops_samples_that_a_neighbour_bounds_better),
        cmocka_unit_test(test_clock_ignores_impossible_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
