/* loop_test.c - sources, hooks, wake-ups, stopping. */
#include "tests/unit/loop_events.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- events, as a word ---- */
typedef struct {
    char name;
    int left; /* items to find; each drain handles one */
} heap_of_work;

static bool work(void *user)
{
    heap_of_work *w = user;
    if (w->left == 0) return false;
    w->left--;
    note(w->name);
    return true;
}

static void test_loop_turn_order_is_sources_tasks_timers_hooks(void **state)
{
    loop *l        = *state;
    heap_of_work a = {'a', 3}, b = {'b', 1};
    loop_timer timer = {0};
    loop_task task   = {.fn = note_user, .user = "k"};
    events[0]        = '\0';
    assert_int_equal(loop_before_sleep(l, note_user, "h", NULL), PEN_OK);
    loop_timer_start(l, &timer, 1, note_user, "t");
    loop_post(l, &task);
    assert_int_equal(loop_add(l, -1, work, &a, NULL), PEN_OK);
    assert_int_equal(loop_add(l, -1, work, &b, NULL), PEN_OK);
    assert_true(loop_turn(l, FOR_EVER));
    assert_string_equal(events, "abaakth");
}

static void test_loop_turn_without_work_sleeps_as_long_as_it_may(void **state)
{
    loop *l               = *state;
    const uint64_t before = clock_ns(&clock_real);
    assert_false(loop_turn(l, 20));
    assert_true(clock_ns(&clock_real) - before >= 19 * 1000000);
    assert_false(loop_turn(l, 0));
}

static bool always_busy(void *user)
{
    ++*(int *)user;
    return true;
}

static void test_loop_flood_does_not_starve_tasks_timers_and_hooks(void **state)
{
    loop *l          = *state;
    int calls        = 0;
    loop_timer timer = {0};
    loop_task task   = {.fn = note_user, .user = "k"};
    events[0]        = '\0';
    loop_add(l, -1, always_busy, &calls, NULL);
    loop_before_sleep(l, note_user, "h", NULL);
    loop_timer_start(l, &timer, 1, note_user, "t");
    loop_post(l, &task);
    assert_true(loop_turn(l, FOR_EVER));
    assert_string_equal(events, "kth");
    assert_true(calls > 1);
}

static bool count_dry(void *user)
{
    ++*(int *)user;
    return false;
}

static void test_loop_dry_source_is_not_asked_again_while_another_works(void **state)
{
    loop *l        = *state;
    heap_of_work a = {'a', 3};
    int calls      = 0;
    loop_task task = {.fn = note_user, .user = "k"};
    events[0]      = '\0';
    loop_add(l, -1, count_dry, &calls, NULL);
    loop_add(l, -1, work, &a, NULL);
    assert_true(loop_turn(l, FOR_EVER));
    assert_string_equal(events, "aaa");
    assert_int_equal(calls, 1);
    loop_post(l, &task);
    assert_true(loop_turn(l, FOR_EVER));
    assert_int_equal(calls, 2); /* but in every turn */
}

/* ---- descriptors ---- */
typedef struct {
    int fd;
    uint64_t got;
} counter_source;

static bool read_counter(void *user)
{
    counter_source *s = user;
    uint64_t n;
    if (read(s->fd, &n, sizeof n) != sizeof n) return false;
    s->got += n;
    return true;
}

static void *write_one(void *user)
{
    const uint64_t one = 1;
    if (write(((counter_source *)user)->fd, &one, sizeof one) != sizeof one) abort();
    return NULL;
}

static void test_loop_descriptor_wakes_it(void **state)
{
    loop *l          = *state;
    counter_source s = {.fd = eventfd(0, EFD_NONBLOCK)};
    pthread_t thread;
    loop_add(l, s.fd, read_counter, &s, NULL);
    assert_int_equal(pthread_create(&thread, NULL, write_one, &s), 0);
    while (s.got == 0) loop_turn(l, FOR_EVER);
    pthread_join(thread, NULL);
    loop_remove(l, &s);
    close(s.fd);
}

/* A small model of ZeroMQ's descriptor: a send (here the hook) finds the work and consumes the edge. */
static bool has_found;

static void find_work(void *user)
{
    heap_of_work *w = user;
    if (!has_found) w->left = 1;
    has_found = true;
}

static void test_loop_checks_sources_once_more_after_its_hooks(void **state)
{
    loop *l        = *state;
    heap_of_work w = {'w', 0};
    events[0]      = '\0';
    has_found      = false;
    loop_add(l, -1, work, &w, NULL);
    loop_before_sleep(l, find_work, &w, NULL);
    assert_true(loop_turn(l, FOR_EVER));
    assert_string_equal(events, "w");
}

typedef struct {
    loop *l;
    loop_task task;
    bool has_posted;
} posting_hook;

static void post_once(void *user)
{
    posting_hook *p = user;
    if (!p->has_posted) loop_post(p->l, &p->task);
    p->has_posted = true;
}

/* Posted while awake, so nothing was written to wake it: the loop must check before it sleeps. */
static void test_loop_does_not_sleep_on_a_task_posted_at_the_last_moment(void **state)
{
    posting_hook p = {.l = *state, .task = {.fn = note_user, .user = "k"}};
    events[0]      = '\0';
    loop_before_sleep(p.l, post_once, &p, NULL);
    while (events[0] == '\0') loop_turn(p.l, FOR_EVER);
    assert_string_equal(events, "k");
}

/* ---- adding and removing inside a turn ---- */
typedef struct {
    loop *l;
    void *victim;
} remover;

static bool remove_victim(void *user)
{
    remover *r = user;
    if (r->victim == NULL) return false;
    loop_remove(r->l, r->victim);
    r->victim = NULL;
    return true;
}

static void test_loop_removes_a_later_source_and_its_hook_from_inside_a_drain(void **state)
{
    loop *l    = *state;
    int victim = 0;
    remover r  = {.l = l, .victim = &victim};
    loop_add(l, -1, remove_victim, &r, NULL);
    loop_add(l, -1, must_not_run, &victim, NULL);
    loop_before_sleep(l, must_not_run_hook, &victim, NULL);
    assert_true(loop_turn(l, 0));
    assert_false(loop_turn(l, 0));
}

static void test_loop_source_may_remove_itself_and_the_others_go_on(void **state)
{
    loop *l        = *state;
    heap_of_work w = {'w', 2};
    remover r      = {.l = l};
    r.victim       = &r;
    events[0]      = '\0';
    loop_add(l, -1, remove_victim, &r, NULL);
    loop_add(l, -1, work, &w, NULL);
    assert_true(loop_turn(l, 0));
    assert_string_equal(events, "ww");
    r.victim = &w; /* would remove w if r were still there */
    w.left   = 1;
    assert_true(loop_turn(l, 0));
    assert_string_equal(events, "www");
}

static void test_loop_removed_descriptor_no_longer_wakes_it(void **state)
{
    loop *l          = *state;
    counter_source s = {.fd = eventfd(1, EFD_NONBLOCK)};
    loop_add(l, s.fd, must_not_run, &s, NULL);
    loop_remove(l, &s);
    const uint64_t before = clock_ns(&clock_real);
    assert_false(loop_turn(l, 20));
    assert_true(clock_ns(&clock_real) - before >= 19 * 1000000);
    close(s.fd);
}

typedef struct {
    loop *l;
    heap_of_work *children;
    int n;
} parent;

static bool add_children(void *user)
{
    parent *p = user;
    if (p->n == 0) return false;
    p->n--;
    return loop_add(p->l, -1, work, &p->children[p->n], NULL) == PEN_OK;
}

static void test_loop_source_may_add_sources(void **state)
{
    enum { CHILDREN = 100 };
    loop *l = *state;
    heap_of_work children[CHILDREN];
    parent p  = {.l = l, .children = children, .n = CHILDREN};
    events[0] = '\0';
    for (int i = 0; i < CHILDREN; i++) children[i] = (heap_of_work){'c', 1};
    loop_add(l, -1, add_children, &p, NULL);
    while (loop_turn(l, 0)) continue;
    assert_int_equal(strlen(events), CHILDREN);
}

/* ---- stopping ---- */
static void test_loop_run_returns_at_once_when_it_was_stopped_before(void **state)
{
    loop *l           = *state;
    uint64_t begin_ms = clock_ms(&clock_real);
    loop_stop(l);
    loop_run(l);
    assert_in_range(clock_ms(&clock_real) - begin_ms, 0, 5000);
}

static void test_loop_run_executes_tasks_posted_before_the_stop(void **state)
{
    loop *l        = *state;
    loop_task task = {.fn = note_user, .user = "k"};
    events[0]      = '\0';
    loop_before_sleep(l, note_user, "h", NULL);
    loop_post(l, &task);
    loop_stop(l);
    loop_run(l);
    assert_string_equal(events, "kh");
}

static void *stop(void *user)
{
    loop_stop(user);
    return NULL;
}

static void test_loop_stops_from_another_thread_and_runs_again(void **state)
{
    loop *l = *state;
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stop, l), 0);
        loop_run(l);
        pthread_join(thread, NULL);
    }
}

static loop *signalled;
static void on_alarm(int number)
{
    (void)number;
    loop_stop(signalled);
}

static void test_loop_stops_from_a_signal_handler(void **state)
{
    signalled               = *state;
    struct sigaction action = {.sa_handler = on_alarm}, old;
    sigaction(SIGALRM, &action, &old);
    ualarm(10000, 0);
    uint64_t begin_ms = clock_ms(&clock_real);
    loop_run(*state);
    sigaction(SIGALRM, &old, NULL);
    assert_in_range(clock_ms(&clock_real) - begin_ms, 9, 5000);
}

static void test_loop_destroy_null_is_fine(void **state)
{
    loop_destroy(NULL);
    assert_non_null(*state); /* and leaves the others alone */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(test_loop_turn_order_is_sources_tasks_timers_hooks),
        test(test_loop_turn_without_work_sleeps_as_long_as_it_may),
        test(test_loop_flood_does_not_starve_tasks_timers_and_hooks),
        test(test_loop_dry_source_is_not_asked_again_while_another_works),
        test(test_loop_descriptor_wakes_it),
        test(test_loop_checks_sources_once_more_after_its_hooks),
        test(test_loop_does_not_sleep_on_a_task_posted_at_the_last_moment),
        test(test_loop_removes_a_later_source_and_its_hook_from_inside_a_drain),
        test(test_loop_source_may_remove_itself_and_the_others_go_on),
        test(test_loop_removed_descriptor_no_longer_wakes_it),
        test(test_loop_source_may_add_sources),
        test(test_loop_run_returns_at_once_when_it_was_stopped_before),
        test(test_loop_run_executes_tasks_posted_before_the_stop),
        test(test_loop_stops_from_another_thread_and_runs_again),
        test(test_loop_stops_from_a_signal_handler),
        test(test_loop_destroy_null_is_fine),
    };
    const int failed = cmocka_run_group_tests_name("sleeps at once", tests, NULL, NULL);
    events_spin      = true;
    return failed + cmocka_run_group_tests_name("looks a little longer first", tests, NULL, NULL);
}
