/* loop.c - the event loop: poll(2), an eventfd, a heap of timers, a stack of posted tasks.
 *
 * DESIGN
 * Waking.  Before it sleeps the loop sets `sleeping` and only then looks at the posted tasks once
 * more; a poster pushes its task and only then looks at `sleeping`.  Both sides use sequentially
 * consistent operations, so at least one of them sees the other: a task is found, or the eventfd is
 * written.  The poster that writes also clears `sleeping`; that is why a burst of posts costs one
 * system call and a busy loop none.
 *
 * Fairness.  Sources are drained in rounds, until a round did nothing: each source once in the first round, then those
 * that had something in the round before.  A flood ends the rounds after ROUNDS_MAX, so tasks, timers and hooks get their
 * turn anyway; such a turn does not sleep.
 *
 * The last look.  A hook that sends through ZeroMQ may swallow the edge of its descriptor, so the
 * sources are drained once more between the hooks and poll(2).
 *
 * Timers are an intrusive pairing heap (Fredman, Sedgewick, Sleator and Tarjan, Algorithmica 1
 * (1986), two-pass variant): it needs no memory of its own, so starting a timer cannot fail.
 */
#include "common/base/loop.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ROUNDS_MAX = 16, SPIN_NS = 50000, SPINS_LEFT_OUT_MAX = 15 };

typedef struct {
    int fd;
    loop_drain_fn drain; /* NULL: removed, waits for tidy() */
    void *user;
    bool is_wet; /* it had something in the last round */
} source;

typedef struct {
    loop_fn fn; /* NULL: removed, waits for tidy() */
    void *user;
} hook;

struct loop {
    uint64_t now_ms;

    source *sources;
    size_t n_sources;
    hook *hooks;
    size_t n_hooks;
    bool spins;
    uint32_t spins_left_out, leave_out; /* after one in vain; of them still to come */
    bool is_untidy;                     /* something was removed, or polls is stale */

    struct pollfd *polls; /* the eventfd, then the sources that have a descriptor */
    size_t n_polls, polls_room;

    loop_timer *timers; /* root of the heap: the one due first */
    uint64_t timers_started;

    int wake_fd;
    atomic_bool sleeping, stopping;
    _Atomic(loop_task *) posted; /* newest first */
};

/* ---- life ------------------------------------------------------------------------------------ */

loop *loop_create(pen_error *why)
{
    loop *self = calloc(1, sizeof *self);
    if (self == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for an event loop");
        return NULL;
    }
    self->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (self->wake_fd < 0) {
        why_set(why, errno == ENOMEM ? PEN_NO_MEMORY : PEN_UNSUPPORTED,
                "cannot open an eventfd for the event loop: %m (see `ulimit -n`)");
        free(self);
        return NULL;
    }
    if (!VEC_ROOM(self->polls, self->polls_room, 1)) {
        why_set(why, PEN_NO_MEMORY, "no memory for an event loop");
        loop_destroy(self);
        return NULL;
    }
    self->is_untidy = true;
    self->now_ms    = clock_ms(&clock_real);
    return self;
}

void loop_destroy(loop *self)
{
    if (self == NULL) return;
    close(self->wake_fd);
    free(self->sources);
    free(self->hooks);
    free(self->polls);
    free(self);
}

uint64_t loop_now_ms(const loop *self)
{
    return self->now_ms;
}

/* ---- sources and hooks ----------------------------------------------------------------------- */

pen_status loop_add(loop *self, int fd, loop_drain_fn drain, void *user, pen_error *why)
{
    /* polls grows here and not in tidy(), where a failure could not be reported. */
    if (!VEC_MORE(self->sources, self->n_sources) ||
        !VEC_ROOM(self->polls, self->polls_room, self->n_sources + 2))
        return why_set(why, PEN_NO_MEMORY, "no memory for another source of an event loop");

    self->sources[self->n_sources++] = (source){.fd = fd, .drain = drain, .user = user};
    self->is_untidy                  = true;
    return PEN_OK;
}

pen_status loop_before_sleep(loop *self, loop_fn fn, void *user, pen_error *why)
{
    if (!VEC_MORE(self->hooks, self->n_hooks))
        return why_set(why, PEN_NO_MEMORY, "no memory for another hook of an event loop");
    self->hooks[self->n_hooks++] = (hook){.fn = fn, .user = user};
    return PEN_OK;
}

/* Only marks: our caller may be walking the arrays. */
void loop_remove(loop *self, void *user)
{
    for (size_t i = 0; i < self->n_sources; i++)
        if (self->sources[i].user == user) self->sources[i].drain = NULL;
    for (size_t i = 0; i < self->n_hooks; i++)
        if (self->hooks[i].user == user) self->hooks[i].fn = NULL;
    self->is_untidy = true;
}

/* Drops removed entries and rebuilds polls. */
static void tidy(loop *self)
{
    size_t kept    = 0;
    self->polls[0] = (struct pollfd){.fd = self->wake_fd, .events = POLLIN};
    self->n_polls  = 1;
    for (size_t i = 0; i < self->n_sources; i++) {
        const source s = self->sources[i];
        if (s.drain == NULL) continue;
        self->sources[kept++] = s;
        if (s.fd >= 0) self->polls[self->n_polls++] = (struct pollfd){.fd = s.fd, .events = POLLIN};
    }
    self->n_sources = kept;

    kept = 0;
    for (size_t i = 0; i < self->n_hooks; i++)
        if (self->hooks[i].fn != NULL) self->hooks[kept++] = self->hooks[i];
    self->n_hooks   = kept;
    self->is_untidy = false;
}

/* One round.  By index and by copy, because a drain may add and remove sources. */
static bool drain_each(loop *self, bool only_wet)
{
    bool worked = false;
    for (size_t i = 0; i < self->n_sources; i++) {
        const source s = self->sources[i];
        if (s.drain == NULL || (only_wet && !s.is_wet)) continue;
        const bool is_wet       = s.drain(s.user);
        self->sources[i].is_wet = is_wet;
        worked |= is_wet;
    }
    return worked;
}

static bool drain_until_dry(loop *self)
{
    for (int round = 0; round < ROUNDS_MAX; round++)
        if (!drain_each(self, round > 0)) return round > 0;
    return true;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static bool is_before(const loop_timer *a, const loop_timer *b)
{
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->order < b->order;
}

/* Two heaps become one.  A node's prev is its left sibling or, of a first child, its parent. */
static loop_timer *merge(loop_timer *a, loop_timer *b)
{
    if (a == NULL) return b;
    if (b == NULL) return a;
    if (is_before(b, a)) {
        loop_timer *swap = a;
        a                = b;
        b                = swap;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child != NULL) a->child->prev = b;
    a->child = b;
    return a;
}

static loop_timer *detach(loop_timer *timer)
{
    timer->next = timer->prev = NULL;
    return timer;
}

/* Siblings become one heap: in pairs from left to right, then the pairs from right to left. */
static loop_timer *merge_siblings(loop_timer *first)
{
    loop_timer *pairs = NULL, *root = NULL;
    while (first != NULL) {
        loop_timer *a = first, *b = first->next;
        first = b != NULL ? b->next : NULL;
        detach(a);
        loop_timer *pair = b != NULL ? merge(a, detach(b)) : a;
        pair->next       = pairs;
        pairs            = pair;
    }
    while (pairs != NULL) {
        loop_timer *pair = pairs;
        pairs            = pairs->next;
        root             = merge(root, detach(pair));
    }
    return root;
}

void loop_timer_stop(loop *self, loop_timer *timer)
{
    if (timer->due_ms == 0) return;
    loop_timer *orphans = merge_siblings(timer->child);
    if (timer == self->timers) {
        self->timers = orphans;
    } else {
        if (timer->prev->child == timer)
            timer->prev->child = timer->next;
        else
            timer->prev->next = timer->next;
        if (timer->next != NULL) timer->next->prev = timer->prev;
        self->timers = merge(self->timers, orphans);
    }
    timer->child  = NULL;
    timer->due_ms = 0;
    detach(timer);
}

void loop_timer_start(loop *self, loop_timer *timer, uint64_t due_ms, loop_fn fn, void *user)
{
    loop_timer_stop(self, timer);
    /* Not before now, so that a timer that restarts itself queues behind all due ones. */
    timer->due_ms = due_ms > self->now_ms ? due_ms : self->now_ms;
    timer->fn     = fn;
    timer->user   = user;
    timer->order  = self->timers_started++;
    timer->child  = NULL;
    self->timers  = merge(self->timers, detach(timer));
}

static bool run_timers(loop *self)
{
    const uint64_t started_before = self->timers_started;
    bool worked                   = false;
    for (;;) {
        loop_timer *timer = self->timers;
        if (timer == NULL || timer->due_ms > self->now_ms) break;
        if (timer->order >= started_before) break;
        loop_timer_stop(self, timer);
        timer->fn(timer->user);
        worked = true;
    }
    return worked;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void wake(loop *self)
{
    if (!atomic_exchange(&self->sleeping, false)) return;
    const int saved    = errno;
    const uint64_t one = 1;
    while (write(self->wake_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
    errno = saved;
}

void loop_post(loop *self, loop_task *task)
{
    task->next = atomic_load_explicit(&self->posted, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&self->posted, &task->next, task)) continue;
    wake(self);
}

static bool run_tasks(loop *self)
{
    loop_task *newest = atomic_exchange(&self->posted, NULL), *oldest = NULL;
    while (newest != NULL) {
        loop_task *older = newest->next;
        newest->next     = oldest;
        oldest           = newest;
        newest           = older;
    }
    const bool worked = oldest != NULL;
    while (oldest != NULL) {
        loop_task *task = oldest;
        oldest = task->next; /* before fn: afterwards the task may be freed or posted again */
        task->fn(task->user);
    }
    return worked;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static int wait_ms(const loop *self, uint64_t wait_ms_max)
{
    uint64_t wait = wait_ms_max;
    if (self->timers != NULL) {
        const uint64_t now_ms = clock_ms(&clock_real), due_ms = self->timers->due_ms;
        const uint64_t until = due_ms > now_ms ? due_ms - now_ms : 0;
        if (until < wait) wait = until;
    }
    if (wait == UINT64_MAX) return -1;
    return wait < INT_MAX ? (int)wait : INT_MAX;
}

static bool is_posted(loop *self)
{
    return atomic_load(&self->posted) != NULL || atomic_load(&self->stopping);
}

/* True: there is something to do.  Each time it was in vain, more sleeps follow without it. */
static bool comes_soon(loop *self)
{
    if (self->leave_out > 0) {
        self->leave_out--;
        return false;
    }
    for (const uint64_t until = clock_ns(&clock_real) + SPIN_NS; clock_ns(&clock_real) < until;) {
        if (is_posted(self) || poll(self->polls, self->n_polls, 0) > 0) {
            self->spins_left_out = 0;
            return true;
        }
        sched_yield();
    }
    if (self->spins_left_out < SPINS_LEFT_OUT_MAX)
        self->spins_left_out = 2 * self->spins_left_out + 1;
    self->leave_out = self->spins_left_out;
    return false;
}

void loop_spin(loop *self, int64_t threads)
{
    self->spins = threads < sysconf(_SC_NPROCESSORS_ONLN);
}

static void sleep_until_woken(loop *self, uint64_t wait_ms_max)
{
    const int wait = wait_ms(self, wait_ms_max);
    if (wait == 0) return;
    if (self->is_untidy) tidy(self);
    if (!self->spins || !comes_soon(self)) {
        atomic_store(&self->sleeping, true);
        if (!is_posted(self))
            poll(self->polls, self->n_polls,
                 wait); /* result unused: the next turn drains every source */
        atomic_store(&self->sleeping, false);
    }

    uint64_t count;
    if ((self->polls[0].revents & POLLIN) != 0 && read(self->wake_fd, &count, sizeof count) < 0)
        assert(errno == EAGAIN || errno == EINTR);
}

bool loop_turn(loop *self, uint64_t wait_ms_max)
{
    self->now_ms = clock_ms(&clock_real);
    if (self->is_untidy) tidy(self);
    bool worked = drain_until_dry(self);
    worked |= run_tasks(self);
    worked |= run_timers(self);
    for (size_t i = 0; i < self->n_hooks; i++) {
        const hook h = self->hooks[i];
        if (h.fn != NULL) h.fn(h.user);
    }
    if (worked || drain_each(self, false)) return true;
    sleep_until_woken(self, wait_ms_max);
    return false;
}

void loop_run(loop *self)
{
    while (!atomic_load(&self->stopping)) loop_turn(self, UINT64_MAX);
    atomic_store(&self->stopping, false);
    loop_turn(self, 0); /* tasks posted before the stop, and the hooks that flush */
}

void loop_stop(loop *self)
{
    atomic_store(&self->stopping, true);
    wake(self);
}
