/* scheduler_cycle_test.c - waits of workers that never end: each row is a scene of three workers, told by beats. */
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 3, EVENTS_MAX = 8, LEASE_MS = 10000 };

typedef enum { NOTHING, BEAT, LEAVES, OVERDUE, OWES, OWES_NOT, LATER } event_kind;
typedef struct {
    event_kind kind;
    int32_t rank;
    int64_t step; /* OVERDUE: the rank it waits for */
    const char *call;
    uint64_t ms; /* in that call, waited, or passing */
} event;

/* The row's events, in order. */
#define IN(rank, step, call, ms)                                                                   \
    {                                                                                              \
        BEAT, rank, step, call, ms                                                                 \
    }
#define LEFT(rank)                                                                                 \
    {                                                                                              \
        LEAVES, rank, 0, NULL, 0                                                                   \
    }
#define WAITS_FOR(rank, other, ms)                                                                 \
    {                                                                                              \
        OVERDUE, rank, other, NULL, ms                                                             \
    }
#define SERVER_SAYS(kind, rank)                                                                    \
    {                                                                                              \
        kind, rank, 5, NULL, 0                                                                     \
    }
#define PASS(ms)                                                                                   \
    {                                                                                              \
        LATER, 0, 0, NULL, ms                                                                      \
    }

typedef struct {
    const char *scene;
    int32_t servers;
    const char *rule;
    event event[EVENTS_MAX];
    uint32_t asked;      /* number of ENQUIRE messages about the suspect */
    const char *verdict; /* a part of it; NULL: none */
    bool is_lost;        /* the others get LOST instead */
} row;

static const char *const fails = "on_worker_loss=fail", *const goes_on = "on_worker_loss=continue";

static void happens(scene *r, const event *e)
{
    const int32_t other = (int32_t)e->step;
    wire_control c      = {0};
    switch (e->kind) {
    case BEAT:
        c = (wire_control){.kind   = WIRE_BEAT,
                           .u.beat = {.step = e->step, .call = e->call, .call_ms = e->ms}};
        break;
    case OVERDUE:
        c                     = (wire_control){.kind = WIRE_OVERDUE};
        c.u.overdue.what      = "all_reduce 'loss' (call 6)";
        c.u.overdue.waited_ms = e->ms;
        c.u.overdue.n_missing = 1;
        c.u.overdue.missing   = &other;
        break;
    case OWES:
    case OWES_NOT:
        c = (wire_control){.kind      = WIRE_MISSING,
                           .u.missing = {e->rank, e->step, "fc1.bias", .known = e->kind == OWES}};
        scene_say(r, SCENE_SERVER(0), &c);
        return;
    case LEAVES: scene_leaves(r, SCENE_WORKER(e->rank)); return;
    case LATER:
        r->now += e->ms;
        scheduler_core_tick(r->core, r->now);
        return;
    default: return;
    }
    scene_say(r, SCENE_WORKER(e->rank), &c);
}

static uint32_t count_enquiries(const row *x, const scene *r)
{
    return x->servers > 0 ? scene_count(r, WIRE_ENQUIRE) : 0;
}

static void play(const row *x)
{
    scene *r = scene_train(WORKERS, x->servers, x->rule, NULL);
    scene_forget(r);
    for (int i = 0; i < EVENTS_MAX; i++) happens(r, &x->event[i]);
    const wire_control *verdict = scene_last(r, SCENE_WORKER(0), WIRE_VERDICT);
    if (count_enquiries(x, r) != x->asked)
        fail_msg("%s: servers were asked %u times", x->scene, count_enquiries(x, r));
    if ((verdict != NULL) != (x->verdict != NULL) ||
        (verdict != NULL && strstr(verdict->u.verdict.text, x->verdict) == NULL))
        fail_msg("%s: %s", x->scene, verdict != NULL ? verdict->u.verdict.text : "no verdict");
    if ((scene_last(r, SCENE_WORKER(0), WIRE_LOST) != NULL) != x->is_lost)
        fail_msg("%s: a loss was told or was not", x->scene);
    scene_drop(r);
}

/* ---- waiting for a rank that has left -------------------------------------------------------- */
static void a_rank_that_left_in_a_step_that_another_waits_in_is_a_loss(void **state)
{
    static const row rows[] = {
        {"in the same step, without servers",
         0,
         fails,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "pen_step_end", 1000)},
         0,
         "worker 1 (",
         false},
        {"with servers they are asked what it owes",
         1,
         fails,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "pen_step_end", 1000), SERVER_SAYS(OWES, 1)},
         1,
         "it has not pushed 'fc1.bias' for step 5",
         false},
        {"in a step before",
         0,
         fails,
         {IN(1, 3, "", 0), LEFT(1), IN(0, 5, "pen_step_end", 1000)},
         0,
         "worker 1 (",
         false},
        {"while another uses a unit",
         0,
         fails,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "pen_use", 1000)},
         0,
         "worker 1 (",
         false},
        {"where the others go on they are told",
         0,
         goes_on,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "pen_step_end", 1000)},
         0,
         NULL,
         true},
        {"one that did more steps is not missed",
         0,
         fails,
         {IN(1, 6, "", 0), LEFT(1), IN(0, 5, "pen_step_end", 60000)},
         0,
         NULL,
         false},
        {"who has just come to the end of its step may have its answer on the way",
         0,
         fails,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "pen_step_end", 999)},
         0,
         NULL,
         false},
        {"who computes waits for nobody",
         0,
         fails,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "after pen_ready", 60000)},
         0,
         NULL,
         false},
        {"everybody may leave",
         0,
         fails,
         {IN(1, 5, "", 0), LEFT(1), IN(0, 5, "", 0), LEFT(2)},
         0,
         NULL,
         false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) play(&rows[i]);
}

static void a_rank_that_leaves_before_registering_is_missed_by_ranks_that_registered(void **state)
{
    (void)state;
    scene *r = scene_wait(2, 0, NULL);
    for (int32_t w = 0; w < 2; w++) scene_worker_comes(r, w, 4000 + (uint64_t)w);
    scene_forget(r);
    scene_registers(r, 0, false);
    scene_leaves(r, SCENE_WORKER(1));
    assert_non_null(
        strstr(scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.text, "worker 1 ("));
    scene_drop(r);
}

/* ---- waiting for each other ------------------------------------------------------------------ */
#define STUCK_1 IN(1, 5, "pen_all_reduce", LEASE_MS), WAITS_FOR(1, 0, LEASE_MS)
#define STUCK_0 IN(0, 5, "pen_step_end", LEASE_MS)

static void two_ranks_that_wait_for_each_other_end_the_job_with_both_names(void **state)
{
    static const row rows[] = {
        {"one in a collective owes gradients to one that it waits for",
         1,
         fails,
         {STUCK_1, STUCK_0, SERVER_SAYS(OWES, 1)},
         1,
         "worker 1 (devbox) waits in all_reduce 'loss' (call 6) for worker 0 (devbox), which waits "
         "in pen_step_end of step 5 for the other's 'fc1.bias': neither can go on; sum a loss with "
         "pen_step_scalar()",
         false},
        {"whatever the rule for a loss: nobody is dead",
         1,
         goes_on,
         {STUCK_1, STUCK_0, SERVER_SAYS(OWES, 1)},
         1,
         "neither can go on",
         false},
        {"it owes nothing", 1, fails, {STUCK_1, STUCK_0, SERVER_SAYS(OWES_NOT, 1)}, 1, NULL, false},
        {"the answer is about another",
         1,
         fails,
         {STUCK_1, STUCK_0, SERVER_SAYS(OWES, 2)},
         1,
         NULL,
         false},
        {"its collective has ended meanwhile",
         1,
         fails,
         {STUCK_1, STUCK_0, PASS(3000), IN(1, 5, "after pen_all_reduce", 2000),
          SERVER_SAYS(OWES, 1)},
         1,
         NULL,
         false},
        {"the step has ended meanwhile",
         1,
         fails,
         {STUCK_1, STUCK_0, PASS(100), IN(0, 6, "pen_step_begin", 50), SERVER_SAYS(OWES, 1)},
         1,
         NULL,
         false},
        {"servers are not asked with each beat",
         1,
         fails,
         {STUCK_1, STUCK_0, PASS(1999), IN(0, 5, "pen_step_end", LEASE_MS + 1999)},
         1,
         NULL,
         false},
        {"and again after a while",
         1,
         fails,
         {STUCK_1, STUCK_0, PASS(2000), IN(1, 5, "pen_all_reduce", LEASE_MS + 2000),
          IN(0, 5, "pen_step_end", LEASE_MS + 2000)},
         2,
         NULL,
         false},
        {"one waits shorter than the lease",
         1,
         fails,
         {IN(1, 5, "pen_all_reduce", LEASE_MS), WAITS_FOR(1, 0, LEASE_MS - 1), STUCK_0},
         0,
         NULL,
         false},
        {"the other does",
         1,
         fails,
         {STUCK_1, IN(0, 5, "pen_step_end", LEASE_MS - 1)},
         0,
         NULL,
         false},
        {"it waits for a third",
         1,
         fails,
         {IN(1, 5, "pen_all_reduce", LEASE_MS), WAITS_FOR(1, 2, LEASE_MS), STUCK_0},
         0,
         NULL,
         false},
        {"it is a step ahead, so the other has its gradients",
         1,
         fails,
         {IN(1, 6, "pen_all_reduce", LEASE_MS), WAITS_FOR(1, 0, LEASE_MS), STUCK_0},
         0,
         NULL,
         false},
        {"both are in the collective",
         1,
         fails,
         {STUCK_1, IN(0, 5, "pen_all_reduce", LEASE_MS)},
         0,
         NULL,
         false},
        {"without servers nobody holds gradients", 0, fails, {STUCK_1, STUCK_0}, 0, NULL, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) play(&rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_left_in_a_step_that_another_waits_in_is_a_loss),
        cmocka_unit_test(a_rank_that_leaves_before_registering_is_missed_by_ranks_that_registered),
        cmocka_unit_test(two_ranks_that_wait_for_each_other_end_the_job_with_both_names),
    };
    return cmocka_run_group_tests_name("scheduler_cycle", tests, NULL, NULL);
}
