/* crew.c - threads that wait for work: first spinning, then asleep. */
#include "crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 4000 }; /* some 10 us: regions follow closely, and waking costs more */

typedef struct {
    struct crew *crew;
    pthread_t thread;
    int member;
} crew_thread;

struct crew {
    int members, started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    atomic_uint turn;      /* counts crew_run() */
    atomic_int unfinished; /* members that have not finished this turn */
    atomic_int ended;
    crew_fn fn;
    void *arg;
    crew_thread threads[];
};

static void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static unsigned next_turn(crew *c, unsigned last)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&c->turn, memory_order_acquire) != last) return last + 1;
        rest();
    }
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->turn) == last) pthread_cond_wait(&c->work, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return last + 1;
}

static void *crew_main(void *arg)
{
    crew_thread *me = arg;
    crew *c         = me->crew;
    for (unsigned turn = 0;;) {
        turn = next_turn(c, turn);
        if (atomic_load(&c->ended)) return NULL;
        c->fn(c->arg, me->member, c->members);
        if (atomic_fetch_sub_explicit(&c->unfinished, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&c->lock);
            pthread_cond_signal(&c->done);
            pthread_mutex_unlock(&c->lock);
        }
    }
}

static void begin_turn(crew *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->unfinished, c->started);
    atomic_fetch_add_explicit(&c->turn, 1, memory_order_release);
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
}

crew *crew_new(int members)
{
    crew *c = calloc(1, sizeof *c + sizeof(crew_thread) * (size_t)members);
    if (!c) return NULL;
    c->members = members;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    for (int i = 1; i < members; i++) {
        crew_thread *t = &c->threads[i];
        *t             = (crew_thread){.crew = c, .member = i};
        if (pthread_create(&t->thread, NULL, crew_main, t) != 0) {
            crew_free(c);
            return NULL;
        }
        c->started++;
    }
    return c;
}

void crew_free(crew *c)
{
    if (!c) return;
    atomic_store(&c->ended, 1);
    begin_turn(c);
    for (int i = 1; i <= c->started; i++) pthread_join(c->threads[i].thread, NULL);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int crew_members(const crew *c)
{
    return c->members;
}

void crew_run(crew *c, crew_fn fn, void *arg)
{
    if (c->members == 1) {
        fn(arg, 0, 1);
        return;
    }
    c->fn  = fn;
    c->arg = arg;
    begin_turn(c);
    fn(arg, 0, c->members);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&c->unfinished, memory_order_acquire) == 0) return;
        rest();
    }
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->unfinished) > 0) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}
