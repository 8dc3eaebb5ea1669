/* coll_engine_fault_test.c - calls that fail: mismatches, deadlines, verdicts, members that die. */
#include "tests/unit/coll_settings.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "worker/collective/fault_point.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* No rank pretends. */
static void start_rig(rig *r, int n, const char *const *settings, const coll_job *job)
{
    memset(engine_pretences, 0, sizeof engine_pretences);
    rig_start(r, n, settings, job);
}

/* ---- failures -------------------------------------------------------------------------------- */
static void differ_in_count(rig *r, int rank)
{
    double x[9]  = {0};
    pen_group *w = pen_world(r->ctx[rank]);
    rig_check(r, pen_all_reduce(w, x, x, rank == 1 ? 9 : 8, PEN_F64, PEN_SUM,
                                &(pen_opts){.label = "loss"}, NULL) == PEN_MISMATCH);
    rig_check(r, strstr(pen_last_error(NULL), "all_reduce (call 1) differs: rank 1 has 9 f64") !=
                     NULL);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_MISMATCH); /* permanent */
}

static void a_mismatch_is_one_sentence_on_every_path(void **state)
{
    (void)state;
    const char *const *const paths[] = {
        SETTINGS("retry_ms=5000"), SETTINGS("shared_memory=no"),
        SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b")};
    for (int i = 0; i < 3; i++) {
        rig r = {0};
        start_rig(&r, i == 2 ? 4 : 3, paths[i], NULL);
        rig_run(&r, differ_in_count);
        rig_stop(&r);
    }
}

static void stay_away(rig *r, int rank)
{
    pen_error error;
    double x = 7, sum_of_all = 0;
    if (rank == 2) return;
    pen_group *w = pen_world(r->ctx[rank]);
    if (rank == 1) { /* long timeout: it learns that rank 0 timed out */
        rig_check(r, pen_all_reduce(w, &x, &sum_of_all, 1, PEN_F64, PEN_SUM,
                                    &(pen_opts){.label = "loss", .deadline_ms = 1000},
                                    NULL) != PEN_OK);
        return;
    }
    rig_check(r, pen_all_reduce(w, &x, &sum_of_all, 1, PEN_F64, PEN_SUM,
                                &(pen_opts){.label = "loss", .deadline_ms = 200},
                                NULL) == PEN_TIMED_OUT);
    rig_check(r, strncmp(pen_last_error(&error),
                         "all_reduce 'loss' (call 1) waited 0.2 s for rank 2", 45) == 0);
    rig_check(r, error.missing_n == 1 && error.missing[0] == 2 && error.rank == 2);
    rig_check(r, x == 7 && strcmp(error.tensor, "loss") == 0);
}

static void a_call_that_a_rank_does_not_make_ends_at_its_deadline_and_names_it(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rig r = {0};
        start_rig(&r, 3, i == 0 ? NULL : SETTINGS("shared_memory=no"), NULL);
        rig_run(&r, stay_away);
        rig_stop(&r);
    }
}

typedef struct {
    pthread_mutex_t lock;
    int faults, overdue;
    char what[160];
} verdicts;

/* All ranks report the first sentence, as with the scheduler's verdict. */
static void on_fault(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                     const pen_error *why)
{
    rig *r      = user;
    verdicts *v = r->user;
    pen_error all;
    (void)ranks, (void)n;
    pthread_mutex_lock(&v->lock);
    const bool is_first = v->faults++ == 0;
    pthread_mutex_unlock(&v->lock);
    if (!is_first) return;
    why_set(&all, why->status, "verdict: rank 2 is asleep");
    for (int i = 0; i < r->n; i++) coll_engine_fault(r->ctx[i]->coll, group, call, &all);
}

static void on_overdue(void *user, const char *what, uint64_t waited_ms, const int *missing, int n,
                       bool is_quiet)
{
    (void)is_quiet;
    rig *r      = user;
    verdicts *v = r->user;
    (void)waited_ms;
    pthread_mutex_lock(&v->lock);
    v->overdue += n == 1 && missing[0] == 2;
    snprintf(v->what, sizeof v->what, "%s", what);
    pthread_mutex_unlock(&v->lock);
}

static void hear_the_verdict(rig *r, int rank)
{
    if (rank == 2) return;
    pen_group *w = pen_world(r->ctx[rank]);
    /* Rank 1 would wait much longer; it gets rank 0's verdict. */
    const int64_t patience = rank == 0 ? 200 : 20000;
    rig_check(r, pen_barrier(w, &(pen_opts){.label = "epoch end", .deadline_ms = patience}, NULL) ==
                     PEN_TIMED_OUT);
    rig_check(r, strcmp(pen_last_error(NULL), "verdict: rank 2 is asleep") == 0);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_TIMED_OUT);
    rig_check(r, strcmp(pen_last_error(NULL), "verdict: rank 2 is asleep") == 0);
}

static void all_survivors_get_the_sentence_of_the_first_report(void **state)
{
    (void)state;
    const coll_job job = {.fault = on_fault, .overdue = on_overdue};
    verdicts v         = {.lock = PTHREAD_MUTEX_INITIALIZER};
    rig r              = {.user = &v};
    start_rig(&r, 3, SETTINGS("warn_ms=50"), &job);
    rig_run(&r, hear_the_verdict);
    assert_true(v.faults >= 1 && v.overdue >= 1);
    assert_string_equal(v.what, "barrier 'epoch end' (call 1)");
    rig_stop(&r);
}

static void await_call(rig *r, int rank, uint64_t seq)
{
    coll_engine *e = r->ctx[rank]->coll;
    for (uint64_t at = 0; at < seq; usleep(100)) {
        pthread_mutex_lock(&e->lock);
        at = r->ctx[rank]->world->seq;
        pthread_mutex_unlock(&e->lock);
    }
}

static void wait_for_the_dead(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]);
    double x     = 1;
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_OK);
    if (rank == 2) {
        pen_error why;
        await_call(r, 0, 2);
        await_call(r, 1, 2);
        why_set(&why, PEN_PEER_LOST, "worker 2 died");
        coll_engine_lost(r->ctx[0]->coll, 2, &why);
        coll_engine_lost(r->ctx[1]->coll, 2, &why);
        return;
    }
    rig_check(r, pen_all_reduce(w, &x, &x, 1, PEN_F64, PEN_SUM, &(pen_opts){.label = "g"}, NULL) ==
                     PEN_PEER_LOST);
    rig_check(r, x == 1);
    rig_check(r, strncmp(pen_last_error(NULL), "worker 2 died", 13) == 0);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_PEER_LOST);
    pen_group *pair;
    rig_check(r, pen_group_new(w, (const int[]){0, 1}, 2, &pair) == PEN_OK);
    rig_check(r, pen_all_reduce(pair, &x, &x, 1, PEN_F64, PEN_SUM, NULL, NULL) == PEN_OK && x == 2);
    pen_group_free(pair);
}

static void a_member_that_dies_fails_its_groups_and_others_go_on(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rig r = {0};
        start_rig(&r, 3, i == 0 ? NULL : SETTINGS("shared_memory=no"), NULL);
        rig_run(&r, wait_for_the_dead);
        rig_stop(&r);
    }
}

/* ---- devices of two hosts ---------------------------------------------------------------------- */
/* All ranks are in this process, so host_id pretends that they are on two hosts; tests/gpu/hosts.bats has real ones. */
enum { GONE = 2, LARGE = 300000, FIRST_PHASE = 100, PHASES = 6 };

static struct {
    rig *r;
    atomic_int ended, struck;
    int step;
} death;
static _Thread_local bool is_mortal;

/* Rank 2 stops in its call, and the job says that it is gone. */
static void die_at_step(const char *path, uint64_t seq, int step)
{
    pen_error why;
    (void)seq;
    if (!is_mortal || step != death.step || strcmp(path, "hier") != 0) return;
    is_mortal = false;
    atomic_store(&death.struck, 1);
    why_set(&why, PEN_PEER_LOST, "worker 2 is gone");
    for (int i = 0; i < death.r->n; i++)
        if (i != GONE) coll_engine_lost(death.r->ctx[i]->coll, GONE, &why);
    while (atomic_load(&death.ended) < death.r->n - 1) usleep(1000);
    why_set(&why, PEN_PEER_LOST, "worker 0 is gone");
    coll_engine_lost(death.r->ctx[GONE]->coll, 0, &why);
}

/* Of a job: a member whose peer gave up waits for the verdict, which follows. */
static void report_nothing(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                           const pen_error *why)
{
    (void)user, (void)group, (void)call, (void)ranks, (void)n, (void)why;
}

static void call_with_the_mortal(rig *r, int rank)
{
    static float data[4][LARGE];
    float *x              = data[rank];
    const pen_opts o      = {.deadline_ms = 30000};
    pen_group *w          = pen_world(r->ctx[rank]);
    pen_status status     = PEN_OK;
    ENGINE_PRETENCE(rank) = PRETEND_REACHABLE;
    is_mortal             = rank == GONE;
    for (size_t i = 0; i < LARGE; i++) x[i] = (float)rank + (float)(i % 5);
    for (int i = 0; i < 2 && status == PEN_OK; i++) {
        status = pen_all_reduce(w, x, x, LARGE, PEN_F32, PEN_MAX, &o, NULL);
        rig_check(r,
                  status == PEN_OK || x[LARGE - 1] == (i == 0 ? (float)rank : 3) + (LARGE - 1) % 5);
    }
    rig_check(r, status == PEN_PEER_LOST);
    if (rank != GONE) rig_check(r, strncmp(pen_last_error(NULL), "worker 2 is gone", 16) == 0);
    if (rank != GONE) atomic_fetch_add(&death.ended, 1);
}

static void
a_member_that_dies_in_any_phase_on_devices_of_two_hosts_ends_the_call_on_all(void **state)
{
    (void)state;
    const coll_job job = {.fault = report_nothing};
    coll_fault_point   = die_at_step;
    for (int phase = 0; phase < PHASES; phase++) {
        rig r = {0};
        start_rig(&r, 4, SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b"),
                  &job);
        death.r    = &r;
        death.step = FIRST_PHASE + phase;
        atomic_store(&death.ended, 0);
        atomic_store(&death.struck, 0);
        const bool has_devices = r.ctx[0]->coll->device_place != NULL; /* else built without */
        const uint64_t begun   = clock_ms(&clock_real);
        if (has_devices) rig_run(&r, call_with_the_mortal);
        assert_int_equal(atomic_load(&death.struck), has_devices);
        assert_true(clock_ms(&clock_real) - begun < 15000);
        rig_stop(&r);
    }
    coll_fault_point = NULL;
}

static void wait_for_ever(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]);
    if (rank == 1) {
        pen_error why;
        why_set(&why, PEN_ABORTED, "pen_abort on rank 1");
        coll_engine_fail(r->ctx[0]->coll, &why);
        return;
    }
    rig_check(r, pen_barrier(w, &(pen_opts){.deadline_ms = -1}, NULL) == PEN_ABORTED);
    rig_check(r, strcmp(pen_last_error(NULL), "pen_abort on rank 1") == 0);
}

static void the_end_of_the_job_ends_calls_without_a_deadline(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 2, NULL, NULL);
    rig_run(&r, wait_for_ever);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mismatch_is_one_sentence_on_every_path),
        cmocka_unit_test(a_call_that_a_rank_does_not_make_ends_at_its_deadline_and_names_it),
        cmocka_unit_test(all_survivors_get_the_sentence_of_the_first_report),
        cmocka_unit_test(a_member_that_dies_fails_its_groups_and_others_go_on),
        cmocka_unit_test(
            a_member_that_dies_in_any_phase_on_devices_of_two_hosts_ends_the_call_on_all),
        cmocka_unit_test(the_end_of_the_job_ends_calls_without_a_deadline),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
