/* loop_timer_test.c - timers and tasks of a loop. */
#include "tests/unit/loop_events.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- timers ---- */
static void test_loop_timer_wakes_it_and_is_not_early(void **state)
{
    loop *l               = *state;
    loop_timer timer      = {0};
    events[0]             = '\0';
    const uint64_t due_ms = loop_now_ms(l) + 15;
    loop_timer_start(l, &timer, due_ms, note_user, "t");
    while (events[0] == '\0') loop_turn(l, FOR_EVER);
    assert_true(clock_ms(&clock_real) >= due_ms);
    assert_true(loop_now_ms(l) >= due_ms);
    assert_int_equal(timer.due_ms, 0);
}

static void test_loop_timers_run_in_the_order_they_are_due(void **state)
{
    loop *l             = *state;
    loop_timer timer[4] = {0};
    events[0]           = '\0';
    const uint64_t now  = loop_now_ms(l);
    loop_timer_start(l, &timer[0], now + 3, note_user, "c");
    loop_timer_start(l, &timer[1], now + 1, note_user, "a");
    loop_timer_start(l, &timer[2], now + 3, note_user, "d"); /* equal times: in the order started */
    loop_timer_start(l, &timer[3], now + 2, note_user, "b");
    while (strlen(events) < 4) loop_turn(l, FOR_EVER);
    assert_string_equal(events, "abcd");
}

static void test_loop_timer_restarts_and_stops(void **state)
{
    loop *l             = *state;
    loop_timer timer[3] = {0};
    events[0]           = '\0';
    const uint64_t now  = loop_now_ms(l);
    loop_timer_start(l, &timer[0], now + 1, note_user, "x");
    loop_timer_start(l, &timer[0], now + 3, note_user, "b");
    loop_timer_start(l, &timer[1], now + 2, note_user, "a");
    loop_timer_start(l, &timer[2], now + 1, note_user, "x");
    loop_timer_stop(l, &timer[2]);
    loop_timer_stop(l, &timer[2]);
    assert_int_equal(timer[2].due_ms, 0);
    while (strlen(events) < 2) loop_turn(l, FOR_EVER);
    assert_string_equal(events, "ab");
}

typedef struct {
    loop *l;
    loop_timer self, *other;
    int fired;
} chained;

static void restart_in_the_past(void *user)
{
    chained *c = user;
    c->fired++;
    loop_timer_start(c->l, &c->self, 1, restart_in_the_past, c);
}

static void test_loop_timer_that_restarts_itself_lets_the_others_run(void **state)
{
    loop *l          = *state;
    chained c        = {.l = l};
    loop_timer timer = {0};
    events[0]        = '\0';
    loop_timer_start(l, &c.self, 1, restart_in_the_past, &c);
    loop_timer_start(l, &timer, 1, note_user, "t");
    assert_true(loop_turn(l, FOR_EVER));
    assert_int_equal(c.fired, 1);
    assert_string_equal(events, "t");
    assert_true(loop_turn(l, FOR_EVER));
    assert_int_equal(c.fired, 2);
}

static void stop_the_other(void *user)
{
    chained *c = user;
    loop_timer_stop(c->l, c->other);
}

static void test_loop_timer_may_stop_one_that_is_due_as_well(void **state)
{
    loop *l          = *state;
    loop_timer other = {0};
    chained c        = {.l = l, .other = &other};
    loop_timer_start(l, &c.self, 1, stop_the_other, &c);
    loop_timer_start(l, &other, 1, must_not_run_hook, NULL);
    assert_true(loop_turn(l, 0));
    assert_false(loop_turn(l, 0));
}

/* Random starts, restarts and stops of many timers against the plain rule: a timer runs when all
 * that are due before it have run. */
enum { CROWD = 400, CHANGES = 20000 };

typedef struct {
    loop_timer timer;
    uint64_t due_ms, order; /* expected; due_ms 0: not running */
} one_of_many;

static one_of_many crowd[CROWD];
static uint64_t last_due, last_order;
static int fired;

static void check_order(void *user)
{
    one_of_many *me = user;
    assert_true(me->due_ms != 0);
    assert_true(me->due_ms > last_due || (me->due_ms == last_due && me->order > last_order));
    last_due   = me->due_ms;
    last_order = me->order;
    me->due_ms = 0;
    fired++;
}

static void test_loop_timers_keep_their_order_in_a_crowd(void **state)
{
    loop *l            = *state;
    unsigned seed      = 7;
    const uint64_t now = loop_now_ms(l);
    for (int i = 0; i < CHANGES; i++) {
        one_of_many *one = &crowd[rand_r(&seed) % CROWD];
        if (rand_r(&seed) % 3 == 0) {
            loop_timer_stop(l, &one->timer);
            one->due_ms = 0;
            continue;
        }
        one->due_ms = now + 1 + (uint64_t)rand_r(&seed) % 30;
        one->order  = (uint64_t)i;
        loop_timer_start(l, &one->timer, one->due_ms, check_order, one);
    }
    int running = 0;
    for (int i = 0; i < CROWD; i++) running += crowd[i].due_ms != 0;
    assert_true(running > CROWD / 2);
    while (fired < running) loop_turn(l, FOR_EVER);
    for (int i = 0; i < CROWD; i++) assert_int_equal(crowd[i].due_ms, 0);
}

/* ---- tasks ---- */
typedef struct {
    loop_task task;
    loop *l;
    int left;
} repeater;

static void post_again(void *user)
{
    repeater *r = user;
    if (--r->left > 0) loop_post(r->l, &r->task);
}

static void test_loop_task_may_post_itself_again(void **state)
{
    loop *l    = *state;
    repeater r = {.l = l, .left = 3};
    r.task     = (loop_task){.fn = post_again, .user = &r};
    loop_post(l, &r.task);
    assert_true(loop_turn(l, FOR_EVER));
    assert_int_equal(r.left, 2); /* one per turn: a repeating task starves no other */
    assert_true(loop_turn(l, FOR_EVER));
    assert_true(loop_turn(l, FOR_EVER));
    assert_int_equal(r.left, 0);
    assert_false(loop_turn(l, 0));
}

static void test_loop_task_may_free_itself(void **state)
{
    loop *l = *state;
    for (int i = 0; i < 3; i++) {
        loop_task *task = malloc(sizeof *task);
        *task           = (loop_task){.fn = free, .user = task};
        loop_post(l, task);
    }
    assert_true(loop_turn(l, FOR_EVER));
}

enum { POSTERS = 3, POSTS = 20000 };

typedef struct {
    loop *l;
    int arrived;
    struct posted *posts; /* [POSTS] */
} poster;

typedef struct posted {
    loop_task task;
    poster *from;
    int index;
} posted;

static void check_posted(void *user)
{
    const posted *p = user;
    assert_int_equal(p->from->arrived, p->index);
    p->from->arrived++;
}

static void *post_many(void *user)
{
    poster *p = user;
    for (int i = 0; i < POSTS; i++) {
        posted *one = &p->posts[i];
        *one        = (posted){.task = {.fn = check_posted, .user = one}, .from = p, .index = i};
        loop_post(p->l, &one->task);
    }
    return NULL;
}

static void test_loop_tasks_of_one_thread_keep_their_order(void **state)
{
    loop *l = *state;
    poster posters[POSTERS];
    pthread_t threads[POSTERS];
    for (int i = 0; i < POSTERS; i++) {
        posters[i] = (poster){.l = l, .posts = calloc(POSTS, sizeof(posted))};
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
    }
    for (int i = 0; i < POSTERS; i++)
        while (posters[i].arrived < POSTS) loop_turn(l, FOR_EVER);
    for (int i = 0; i < POSTERS; i++) {
        pthread_join(threads[i], NULL);
        free(posters[i].posts);
    }
}

/* Two loops that wake each other: after one lost wake-up both would sleep for ever. */
enum { RALLY = 20000 };

typedef struct side {
    loop *l;
    struct side *opposite;
    loop_task ball;
    int hits;
    bool is_first;
} side;

static void hit(void *user)
{
    side *s = user;
    if (++s->hits < RALLY || s->is_first) loop_post(s->opposite->l, &s->opposite->ball);
}

static void *play(void *user)
{
    side *s = user;
    while (s->hits < RALLY) loop_turn(s->l, FOR_EVER);
    return NULL;
}

static void test_loop_never_loses_a_wake_up(void **state)
{
    side a = {.l = *state, .is_first = true}, b = {.l = loop_create(NULL)};
    a.opposite = &b;
    b.opposite = &a;
    a.ball     = (loop_task){.fn = hit, .user = &a};
    b.ball     = (loop_task){.fn = hit, .user = &b};
    pthread_t thread;
    loop_post(a.l, &a.ball);
    assert_int_equal(pthread_create(&thread, NULL, play, &b), 0);
    play(&a);
    pthread_join(thread, NULL);
    assert_int_equal(a.hits, RALLY);
    assert_int_equal(b.hits, RALLY);
    loop_destroy(b.l);
}

/* Write system calls of this process so far; -1 if the kernel does not count them. */
static long writes_so_far(void)
{
    char line[64];
    long n     = -1;
    FILE *file = fopen("/proc/self/io", "re");
    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "syscw: %ld", &n) == 1) break;
    fclose(file);
    return n;
}

static void nothing(void *user)
{
    (void)user;
}

static void test_loop_post_to_an_awake_loop_costs_no_system_call(void **state)
{
    loop *l = *state;
    static loop_task tasks[1000];
    const long before = writes_so_far();
    if (before < 0) skip();
    for (int i = 0; i < 1000; i++) {
        tasks[i] = (loop_task){.fn = nothing};
        loop_post(l, &tasks[i]);
    }
    assert_int_equal(writes_so_far(), before);
    assert_true(loop_turn(l, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(test_loop_timer_wakes_it_and_is_not_early),
        test(test_loop_timers_run_in_the_order_they_are_due),
        test(test_loop_timer_restarts_and_stops),
        test(test_loop_timer_that_restarts_itself_lets_the_others_run),
        test(test_loop_timer_may_stop_one_that_is_due_as_well),
        test(test_loop_timers_keep_their_order_in_a_crowd),
        test(test_loop_task_may_post_itself_again),
        test(test_loop_task_may_free_itself),
        test(test_loop_tasks_of_one_thread_keep_their_order),
        test(test_loop_never_loses_a_wake_up),
        test(test_loop_post_to_an_awake_loop_costs_no_system_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
