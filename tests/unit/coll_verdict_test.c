/* coll_verdict_test.c - calls that wait, calls that get a verdict, and settings that must be equal on all ranks. */
#include "../support/coll_rig.h"

#include "common/base/clock.h"
#include "common/base/why.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* ---- waiting --------------------------------------------------------------------------------- */
/* No peer answers: the waiting call reports it again and again, each time after twice as long. */
enum { OVERDUES_MAX = 16 };
typedef struct {
    int n;
    uint64_t waited_ms[OVERDUES_MAX];
} overdues;

static void note_overdue(void *user, const char *what, uint64_t waited_ms, const int *missing,
                         int n, bool is_quiet)
{
    rig *r      = user;
    overdues *o = r->user;
    (void)what, (void)missing, (void)n;
    if (!is_quiet && o->n < OVERDUES_MAX) o->waited_ms[o->n++] = waited_ms;
}

static void wait_in_vain(rig *r, int rank)
{
    if (rank == 0)
        rig_check(r, pen_barrier(pen_world(r->ctx[0]), &(pen_opts){.deadline_ms = 1500}, NULL) ==
                         PEN_TIMED_OUT);
}

static void a_long_wait_is_reported_after_warn_ms_and_after_twice_as_long_each_time(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const coll_job job = {.overdue = note_overdue};
        overdues o         = {0};
        rig r              = {.user = &o};
        rig_start(&r, 2,
                  i == 0 ? SETTINGS("warn_ms=50") : SETTINGS("warn_ms=50", "shared_memory=no"),
                  &job);
        rig_run(&r, wait_in_vain);
        assert_in_range(o.n, 2, 5); /* 50, 100, 200, 400, 800 ms */
        assert_true(o.waited_ms[0] >= 50);
        for (int k = 1; k < o.n; k++) assert_true(o.waited_ms[k] >= 2 * o.waited_ms[k - 1]);
        rig_stop(&r);
    }
}

/* ---- verdicts -------------------------------------------------------------------------------- */
/* A call of one number, which the test drives by hand. */
static void begin_sum(rig *r, int rank, engine_call *c, float *in, float *out)
{
    pen_error why;
    coll_engine *e       = r->ctx[rank]->coll;
    const coll_call call = {.kind  = COLL_ALL_REDUCE,
                            .dtype = PEN_F32,
                            .n     = 1,
                            .in    = in,
                            .out   = out,
                            .scale = 1,
                            .label = "loss"};
    engine_call_fill(c, r->ctx[rank]->world, &call, 0);
    pthread_mutex_lock(&e->lock);
    const pen_status status = engine_call_begin(c, &why);
    pthread_mutex_unlock(&e->lock);
    assert_int_equal(status, PEN_OK);
}

static void drive_once(rig *r, int rank)
{
    coll_engine *e = r->ctx[rank]->coll;
    pthread_mutex_lock(&e->lock);
    engine_drive(e, r->ctx[rank]->world, NULL);
    pthread_mutex_unlock(&e->lock);
}

/* Advances the calls until one has ended; returns its index. */
static int drive_until_one_has_ended(rig *r, engine_call *c)
{
    const uint64_t until = clock_ms(&clock_real) + 20000;
    for (int i = 0; clock_ms(&clock_real) < until; i ^= 1) {
        drive_once(r, i);
        if (c[i].has_ended) return i;
    }
    return -1;
}

static void a_verdict_does_not_fail_a_call_that_has_all_it_needs(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        _Alignas(64) static engine_call c[2];
        float in[2] = {1, 2}, out[2] = {0};
        pen_error why;
        rig r = {0};
        rig_start(&r, 2, i == 0 ? NULL : SETTINGS("shared_memory=no"), NULL);
        for (int k = 0; k < 2; k++) begin_sum(&r, k, &c[k], &in[k], &out[k]);
        const int first = drive_until_one_has_ended(&r, c), other = 1 - first;
        assert_in_range(first, 0, 1);
        assert_int_equal(c[first].status, PEN_OK);
        assert_false(c[other].has_ended);
        usleep(i == 0 ? 0 : 300000); /* the message of the first call is in flight */
        why_set(&why, PEN_PEER_LOST, "worker 7 is gone");
        coll_engine_fault(r.ctx[other]->coll, r.ctx[other]->world->id, 2, &why);
        const atomic_ullong no_news = 0;
        pen_group *world            = r.ctx[other]->world;
        assert_false(coll_attend(&world, 1, &no_news, 0, 0));
        assert_int_equal(c[other].status, PEN_OK);
        assert_true(out[0] == 3 && out[1] == 3);
        assert_int_equal(pen_barrier(r.ctx[other]->world, NULL, NULL), PEN_PEER_LOST);
        assert_string_equal(pen_last_error(NULL), "worker 7 is gone");
        rig_stop(&r);
    }
}

static void count_fault(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                        const pen_error *why)
{
    (void)group, (void)call, (void)ranks, (void)n, (void)why;
    ++*(int *)((rig *)user)->user;
}

static void end_by_verdict(rig *r, int rank, engine_call *c)
{
    pen_error why;
    why_set(&why, PEN_PEER_LOST, "worker 2 is gone");
    coll_engine_fault(r->ctx[rank]->coll, r->ctx[rank]->world->id, 1, &why);
    drive_once(r, rank);
    assert_true(c->has_ended);
    assert_int_equal(c->status, PEN_PEER_LOST);
    assert_string_equal(c->why.text, "worker 2 is gone");
}

static const coll_path *sound_path;

static coll_state find_damage(void *op, pen_error *why)
{
    sound_path->abort(op);
    why_set(why, PEN_CORRUPT, "the bytes of rank 1 have another checksum");
    return COLL_FAILED;
}

/* When the verdict comes, its deadline has passed, and its path would fail at the next look.  Both paths of the
 * defaults: shared memory, and sockets, which members of one host take only without it. */
static void a_verdict_before_a_call_has_failed_is_all_that_the_job_hears(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        _Alignas(64) static engine_call c;
        const coll_job job = {.fault = count_fault};
        float x            = 1;
        int faults         = 0;
        rig r              = {.user = &faults};
        rig_start(&r, 3, i == 0 ? NULL : SETTINGS("shared_memory=no"), &job);
        begin_sum(&r, 0, &c, &x, &x);
        drive_once(&r, 0);
        assert_int_equal(c.state, CALL_RUNNING);
        sound_path        = c.path;
        coll_path damaged = *sound_path;
        damaged.advance   = find_damage;
        c.path            = &damaged;
        c.deadline_ms     = c.begun_ms;
        end_by_verdict(&r, 0, &c);
        assert_int_equal(faults, 0);
        rig_stop(&r);
    }
}

/* Rank 0 sees that rank 1 gave up, and waits for its reason; the verdict comes when it would wait no more. */
static void a_verdict_after_a_peer_gave_up_is_all_that_the_job_hears(void **state)
{
    (void)state;
    _Alignas(64) static engine_call c[2];
    const coll_job job = {.fault = count_fault};
    float x[2]         = {1, 2};
    int faults         = 0;
    rig r              = {.user = &faults};
    rig_start(&r, 3, NULL, &job);
    for (int k = 0; k < 2; k++) {
        begin_sum(&r, k, &c[k], &x[k], &x[k]);
        drive_once(&r, k);
    }
    end_by_verdict(&r, 1, &c[1]);
    const uint64_t until = clock_ms(&clock_real) + 20000;
    while (c[0].state == CALL_RUNNING && clock_ms(&clock_real) < until) drive_once(&r, 0);
    assert_int_equal(c[0].state, CALL_FAULTING);
    usleep(ENGINE_ECHO_MS * 1000 + 1000);
    end_by_verdict(&r, 0, &c[0]);
    assert_int_equal(faults, 0);
    rig_stop(&r);
}

/* Later than half a second, as on an overloaded machine: until then no call fails with its own sentence. */
static void *answer_late(void *user)
{
    rig *r = user;
    pen_error all;
    usleep(1200000);
    why_set(&all, PEN_TIMED_OUT, "verdict: rank 2 is asleep");
    for (int i = 0; i < r->n; i++)
        coll_engine_fault(r->ctx[i]->coll, r->ctx[i]->world->id, 1, &all);
    return NULL;
}

static void on_fault_in_vain(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                             const pen_error *why)
{
    (void)user, (void)group, (void)call, (void)ranks, (void)n, (void)why;
}

static void hear_the_verdict(rig *r, int rank)
{
    /* Rank 0 times out by itself; rank 1 would wait much longer. */
    const int64_t patience = rank == 0 ? 200 : 20000;
    if (rank == 2) return;
    rig_check(r, pen_barrier(pen_world(r->ctx[rank]), &(pen_opts){.deadline_ms = patience}, NULL) ==
                     PEN_TIMED_OUT);
    rig_check(r, strcmp(pen_last_error(NULL), "verdict: rank 2 is asleep") == 0);
}

static void a_late_verdict_is_still_the_sentence_of_all_ranks(void **state)
{
    (void)state;
    const coll_job job = {.fault = on_fault_in_vain};
    pthread_t thread;
    rig r = {0};
    rig_start(&r, 3, SETTINGS("lease_ms=10000"), &job);
    assert_int_equal(pthread_create(&thread, NULL, answer_late, &r), 0);
    rig_run(&r, hear_the_verdict);
    pthread_join(thread, NULL);
    rig_stop(&r);
}

/* ---- what must be equal on all ranks --------------------------------------------------------- */
static void hear_what_differs(rig *r, int rank)
{
    pen_error why;
    double x     = 1;
    pen_group *w = pen_world(r->ctx[rank]);
    rig_check(r, pen_all_reduce(w, &x, &x, 1, PEN_F64, PEN_SUM, NULL, NULL) == PEN_MISMATCH);
    rig_check(r, strcmp(pen_last_error(&why), r->user) == 0);
    rig_check(r, why.rank == 2 && x == 1);
}

static void settings_that_differ_are_named_with_two_ranks(void **state)
{
    (void)state;
    const struct {
        const char *const *settings;
        const char *sentence;
    } cases[] = {
        {SETTINGS("2:coll_lanes=2"),
         "setting 'coll_lanes' is '2' on rank 2 (testhost) and '1' on rank 0 (testhost); "
         "collectives need the same on all ranks"},
        {SETTINGS("2:coll_algorithm=all_reduce : ring", "shared_memory=no"),
         "setting 'coll_algorithm' is 'all_reduce : ring' on rank 2 (testhost) and '' on rank 0 "
         "(testhost); collectives need the same on all ranks"},
        {SETTINGS("2:deterministic=node"),
         "setting 'deterministic' is 'node' on rank 2 (testhost) and 'yes' on rank 0 (testhost); "
         "collectives need the same on all ranks"},
        {SETTINGS("0:deterministic=no", "1:deterministic=no", "2:two_level=yes"),
         "setting 'deterministic' is 'yes' on rank 2 (testhost) and 'no' on rank 0 (testhost); "
         "collectives need the same on all ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r = {.user = (void *)(uintptr_t)cases[i].sentence};
        rig_start(&r, 3, cases[i].settings, NULL);
        rig_run(&r, hear_what_differs);
        rig_stop(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_wait_is_reported_after_warn_ms_and_after_twice_as_long_each_time),
        cmocka_unit_test(a_verdict_does_not_fail_a_call_that_has_all_it_needs),
        cmocka_unit_test(a_verdict_before_a_call_has_failed_is_all_that_the_job_hears),
        cmocka_unit_test(a_verdict_after_a_peer_gave_up_is_all_that_the_job_hears),
        cmocka_unit_test(a_late_verdict_is_still_the_sentence_of_all_ranks),
        cmocka_unit_test(settings_that_differ_are_named_with_two_ranks),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
