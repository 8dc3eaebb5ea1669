/* runner_test.c - schedules run in memory: parts arrive in any order, and lent buffers return late. */
#include "common/base/why.h"
#include "proto/plan.h"
#include "worker/collective/schedule/runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMBERS_MAX = 9, MESSAGES_MAX = 4096 };

/* ---- a link with the worst order and delay ------------------------------------------------------ */
typedef struct {
    int from, to;
    runner_part part;
    size_t bytes;
    uint8_t *copy;       /* the bytes when it was lent */
    const uint8_t *lent; /* NULL: returned */
    runner_debt *debt;
    bool has_arrived;
} message;

typedef struct {
    int n;
    size_t n_messages, bytes[MEMBERS_MAX], steps;
    message message[MESSAGES_MAX];
    double scale[MEMBERS_MAX];
    runner runner[MEMBERS_MAX];
    runner_plan plan[MEMBERS_MAX];
    struct side {
        struct world *w;
        int rank;
    } side[MEMBERS_MAX];
} world;

struct world;

static uint64_t state = 1;

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static world *of(void *user)
{
    return (world *)(void *)((struct side *)user)->w;
}

static bool may_send(void *user, int peer, size_t bytes)
{
    (void)user;
    (void)peer;
    (void)bytes;
    return draw() % 3 != 0;
}

static pen_status lend(void *user, const runner_part *part, const void *data, size_t bytes,
                       runner_debt *debt, pen_error *why)
{
    world *w       = of(user);
    const int from = ((struct side *)user)->rank;
    message *m     = &w->message[w->n_messages++];
    (void)why;
    assert_true(w->n_messages < MESSAGES_MAX);
    *m           = (message){.from  = from,
                             .to    = part->peer,
                             .part  = *part,
                             .bytes = bytes,
                             .copy  = malloc(bytes + 1),
                             .lent  = data,
                             .debt  = debt};
    m->part.peer = from;
    memcpy(m->copy, data, bytes);
    debt->n++;
    w->bytes[from] += bytes;
    return PEN_OK;
}

static bool get_scale(void *user, int position, double *scale)
{
    *scale = of(user)->scale[position];
    return draw() % 2 == 0;
}

static void count_step(void *user, uint32_t step)
{
    (void)step;
    of(user)->steps++;
}

static const runner_link unkind = {
    .may_send = may_send, .send = lend, .scale = get_scale, .step = count_step};

/* A lent buffer must not be written. */
static void give_back(message *m)
{
    if (m->lent == NULL) return;
    assert_memory_equal(m->lent, m->copy, m->bytes);
    m->lent = NULL;
    m->debt->n--;
}

static void arrive(world *w, message *m)
{
    void *place;
    runner *r                  = &w->runner[m->to];
    const runner_answer answer = runner_place(r, &m->part, m->bytes, &place);
    assert_int_not_equal(answer, RUNNER_WRONG);
    if (answer != RUNNER_PLACED) return;
    memcpy(place, m->copy, m->bytes);
    runner_filled(r, &m->part, m->bytes);
    m->has_arrived = true;
}

static void shuffle(world *w)
{
    for (int i = 0; i < 40 && w->n_messages > 0; i++) {
        message *m = &w->message[draw() % w->n_messages];
        if (!m->has_arrived && draw() % 2 == 0) arrive(w, m);
        if (draw() % 4 == 0) give_back(m);
    }
    while (w->n_messages > 0 && w->message[w->n_messages - 1].has_arrived &&
           w->message[w->n_messages - 1].lent == NULL)
        free(w->message[--w->n_messages].copy);
}

/* ---- running -------------------------------------------------------------------------------------- */
static world *world_of(int n)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->n = n;
    for (int i = 0; i < n; i++) {
        w->scale[i]     = 1;
        w->side[i].w    = (struct world *)(void *)w;
        w->side[i].rank = i;
    }
    return w;
}

static void world_free(world *w)
{
    for (int i = 0; i < w->n; i++) {
        runner_fini(&w->runner[i]);
        runner_plan_fini(&w->plan[i]);
    }
    free(w);
}

static void start(world *w, int who, const schedule_algorithm *a, const coll_call *call)
{
    schedule *s;
    pen_error why;
    assert_int_equal(a->build(call->kind, w->n, who, call->root, &s), PEN_OK);
    assert_int_equal(runner_plan_init(&w->plan[who], s, w->n, &why), PEN_OK);
    assert_int_equal(
        runner_start(&w->runner[who], &w->plan[who], call, w->n, who, &unkind, &w->side[who], &why),
        PEN_OK);
}

static void run_all(world *w)
{
    bool is_done = false;
    for (int turns = 0; !is_done; turns++) {
        is_done = true;
        for (int i = 0; i < w->n; i++) {
            pen_error why;
            bool did = false;
            assert_int_equal(runner_advance(&w->runner[i], &did, &why), PEN_OK);
            shuffle(w);
            is_done &= runner_is_done(&w->runner[i]);
        }
        if (turns > 200000) fail_msg("it never ends");
    }
    assert_int_equal(w->n_messages, 0);
    for (int i = 0; i < w->n; i++) runner_finish(&w->runner[i]);
}

/* ---- all_reduce by every algorithm, against a sum of its own ----------------------------------------- */
static float input(int r, size_t i)
{
    return (float)((i * 3 + (size_t)r * 7) % 17) - 8;
}

static void try_all_reduce(const schedule_algorithm *a, int n, size_t count, bool in_place)
{
    float *in[MEMBERS_MAX], *out[MEMBERS_MAX];
    world *w        = world_of(n);
    w->scale[n - 1] = 2;
    for (int i = 0; i < n; i++) {
        in[i]  = malloc((count + 1) * sizeof(float));
        out[i] = in_place ? in[i] : malloc((count + 1) * sizeof(float));
        for (size_t k = 0; k < count; k++) in[i][k] = input(i, k);
        start(w, i, a,
              &(coll_call){.kind  = COLL_ALL_REDUCE,
                           .dtype = PEN_F32,
                           .n     = count,
                           .in    = in[i],
                           .out   = out[i],
                           .scale = w->scale[i],
                           .label = ""});
    }
    run_all(w);
    for (size_t k = 0; k < count; k++) {
        float sum = 0;
        for (int i = 0; i < n; i++) sum += (float)w->scale[i] * input(i, k);
        for (int i = 0; i < n; i++)
            if (out[i][k] != sum)
                fail_msg("%s, %d members, element %zu of %zu: %g, not %g", a->name, n, k, count,
                         out[i][k], sum);
    }
    for (int i = 0; i < n; i++) {
        if (!in_place) free(out[i]);
        free(in[i]);
    }
    world_free(w);
}

static void every_algorithm_survives_any_order_and_late_returns(void **unused)
{
    (void)unused;
    for (const schedule_algorithm *const *a = schedule_all; *a != NULL; a++)
        for (int n = 2; n <= MEMBERS_MAX; n++) {
            if (!(*a)->fits(COLL_ALL_REDUCE, n)) continue;
            try_all_reduce(*a, n, 1001, n % 2 == 0);
            if (n <= 4) try_all_reduce(*a, n, 200003, n % 2 == 1);
        }
}

/* ---- a schedule made by hand ------------------------------------------------------------------------ */
/* Member 0 sends OUT, receives into it and forwards it: lent bytes must not be written. */
static void lent_bytes_are_not_written(void **unused)
{
    static const move one[] = {
        {.verb = MOVE_SEND, .peer = 1, .range = {MOVE_IN, 0, 1, 0, 0, -1}},
        {.verb = MOVE_RECV, .peer = 1, .range = {MOVE_OUT, 0, 1, 0, 0, -1}},
        {.verb = MOVE_SEND, .peer = 1, .range = {MOVE_OUT, 0, 1, 0, 0, -1}},
        {.verb = MOVE_RECV, .peer = 1, .range = {MOVE_OUT, 0, 1, 0, 0, -1}},
    };
    static const uint32_t steps[] = {0, 2, 3, 4};
    schedule s = {.units = 1, .n_steps = 3, .n_moves = 4, .step = steps, .moves = one};
    runner_plan p;
    pen_error why;
    (void)unused;
    assert_int_equal(runner_plan_init(&p, &s, 2, &why), PEN_OK);
    assert_false(p.waits[0]);
    assert_false(p.waits[1]);
    assert_true(p.waits[2]);
    assert_true(p.is_free[1]);
    assert_false(p.is_free[3]);
    assert_int_equal(p.slot[0], 0);
    assert_int_equal(p.slot[2], 1);
    assert_int_equal(p.slot[3], 1);
    p.s = NULL; /* not owned by the plan */
    runner_plan_fini(&p);
}

static void impossible_parts_are_refused(void **unused)
{
    (void)unused;
    world *w      = world_of(2);
    float data[8] = {0};
    void *place;
    start(w, 1, schedule_find("direct"),
          &(coll_call){.kind  = COLL_BROADCAST,
                       .dtype = PEN_F32,
                       .n     = 8,
                       .in    = data,
                       .out   = data,
                       .scale = 1,
                       .label = ""});
    runner *r = &w->runner[1];
    bool did  = false;
    pen_error why;
    const runner_part good = {.peer = 0, .total = sizeof data};
    runner_part bad        = good;
    assert_int_equal(runner_place(r, &good, 8, &place), RUNNER_LATER); /* it has not begun */
    assert_int_equal(runner_advance(r, &did, &why), PEN_OK);
    bad.segment = 1;
    assert_int_equal(runner_place(r, &bad, 8, &place), RUNNER_WRONG);
    bad      = good;
    bad.slot = 1;
    assert_int_equal(runner_place(r, &bad, 8, &place), RUNNER_WRONG);
    bad       = good;
    bad.total = 28;
    assert_int_equal(runner_place(r, &bad, 8, &place), RUNNER_WRONG);
    bad        = good;
    bad.offset = 28;
    assert_int_equal(runner_place(r, &bad, 8, &place), RUNNER_WRONG);
    bad.offset = SIZE_MAX;
    assert_int_equal(runner_place(r, &bad, 8, &place), RUNNER_WRONG);
    assert_int_equal(runner_place(r, &good, sizeof data, &place), RUNNER_PLACED);
    assert_ptr_equal(place, data);
    assert_true(runner_expects(r, 0));
    runner_filled(r, &good, sizeof data);
    assert_int_equal(runner_place(r, &good, sizeof data, &place), RUNNER_WRONG); /* it came */
    assert_int_equal(runner_advance(r, &did, &why), PEN_OK);
    assert_true(runner_is_done(r));
    assert_false(runner_expects(r, 0));
    world_free(w);
}

static void bytes_sent_are_those_of_the_formula(void **unused)
{
    (void)unused;
    enum { N = 4, COUNT = 1 << 16 };
    static const char *const names[] = {"direct", "ring", "halving_doubling", "one_shot"};
    static float in[N][COUNT], out[N][COUNT];
    for (size_t a = 0; a < 4; a++) {
        const schedule_algorithm *algorithm = schedule_find(names[a]);
        world *w                            = world_of(N);
        size_t busiest                      = 0;
        for (int i = 0; i < N; i++)
            start(w, i, algorithm,
                  &(coll_call){.kind  = COLL_ALL_REDUCE,
                               .dtype = PEN_F32,
                               .n     = COUNT,
                               .in    = in[i],
                               .out   = out[i],
                               .scale = 1,
                               .label = ""});
        run_all(w);
        for (int i = 0; i < N; i++)
            if (w->bytes[i] > busiest) busiest = w->bytes[i];
        assert_true((double)busiest == algorithm->cost(COLL_ALL_REDUCE, N, COUNT * 4.0).bytes);
        assert_true(w->steps >= N);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_survives_any_order_and_late_returns),
        cmocka_unit_test(lent_bytes_are_not_written),
        cmocka_unit_test(impossible_parts_are_refused),
        cmocka_unit_test(bytes_sent_are_those_of_the_formula),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
