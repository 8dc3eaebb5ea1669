/* engine_sleep.c - what drivers sleep on, and what wakes them. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/clock.h"

#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

bool engine_mesh_advance(coll_engine *e)
{
    pthread_mutex_lock(&e->mesh_lock);
    const bool did = mesh_advance(e->mesh);
    pthread_mutex_unlock(&e->mesh_lock);
    if (did) engine_pass_on(e);
    return did;
}

engine_seen engine_see(const coll_engine *e)
{
    return (engine_seen){.node = e->place != NULL ? node_doorbell(e->place) : 0,
                         .mesh = e->mesh != NULL ? mesh_news(e->mesh) : 0};
}

/* A message that one thread read may be for another, which sleeps on the mesh. */
void engine_pass_on(coll_engine *e)
{
    const uint64_t one = 1;
    if (atomic_load(&e->mesh_sleepers) == 0) return;
    ssize_t written = write(e->news_fd, &one, sizeof one);
    (void)written;
}

bool coll_engine_look(coll_engine *e)
{
    if (e->mesh == NULL || pthread_mutex_trylock(&e->mesh_lock) != 0)
        return false; /* its holder looks */
    const bool did = mesh_advance(e->mesh);
    mesh_look(e->mesh);
    pthread_mutex_unlock(&e->mesh_lock);
    if (did) engine_pass_on(e);
    return did;
}

bool coll_engine_is_linked(coll_engine *e)
{
    if (e->mesh == NULL) return true;
    pthread_mutex_lock(&e->mesh_lock);
    const bool is = mesh_is_linked(e->mesh);
    pthread_mutex_unlock(&e->mesh_lock);
    return is;
}

static void sleep_on_mesh(coll_engine *e, uint32_t seen, long timeout_us)
{
    struct pollfd fd[2]           = {{.fd = e->mesh_fd, .events = POLLIN},
                                     {.fd = e->news_fd, .events = POLLIN}};
    const struct timespec timeout = {.tv_sec  = timeout_us / 1000000,
                                     .tv_nsec = timeout_us % 1000000 * 1000};
    uint64_t n;
    atomic_fetch_add(&e->mesh_sleepers, 1);
    if (mesh_news(e->mesh) == seen && ppoll(fd, 2, &timeout, NULL) > 0 &&
        (fd[1].revents & POLLIN) != 0) {
        ssize_t got = read(e->news_fd, &n, sizeof n);
        (void)got;
    }
    atomic_fetch_sub(&e->mesh_sleepers, 1);
}

/* What is awaited is often there before a sleeping thread would be awake, all the more while parts of it come.  With more
 * workers than cores, another one may have to run first. */
static void spin_on_mesh(coll_engine *e, uint32_t seen)
{
    const uint64_t spin_ns = (e->has_core ? ENGINE_SPIN_US : ENGINE_SPIN_BUSY_US) * 1000;
    uint32_t moves         = mesh_moves(e->mesh);
    uint64_t now = clock_ns(&clock_real), until = now + spin_ns;
    while (mesh_news(e->mesh) == seen && now < until) {
        if (!e->has_core) sched_yield();
        (void)engine_mesh_advance(e);
        now = clock_ns(&clock_real);
        if (mesh_moves(e->mesh) != moves) until = now + spin_ns;
        moves = mesh_moves(e->mesh);
    }
}

/* Half of the time that it has waited: many members on few cores would otherwise spend their time on it. */
static long nap_us(const coll_engine *e, engine_links links)
{
    const uint64_t now = clock_ns(&clock_real);
    const double us =
        links.idle_ns != 0 && now > links.idle_ns ? (double)(now - links.idle_ns) / 2000 : 0;
    const double least = e->stretch * ENGINE_NAP_US, most = e->stretch * ENGINE_NAP_IDLE_US;
    return (long)(us < least ? least : us > most ? most : us);
}

void engine_nap(coll_engine *e, engine_seen seen, engine_links links)
{
    const bool on_node = links.node && e->place != NULL, on_wire = links.wire && e->mesh != NULL;
    const bool is_polled = links.polled || (on_node && on_wire);
    const long us        = is_polled ? ENGINE_NAP_POLL_US : nap_us(e, links);
    /* A call on a device takes as long as a few naps, and nothing tells when its work is done: the caller asks again. */
    if (links.polled && clock_ns(&clock_real) < links.idle_ns + ENGINE_POLL_US * 1000) {
        if (!e->has_core) sched_yield();
        return;
    }
    if (on_node) {
        if (on_wire) sleep_on_mesh(e, seen.mesh, 0);
        node_sleep(e->place, seen.node, (uint64_t)us);
    } else if (on_wire) {
        if (links.may_spin && !e->is_crowded) spin_on_mesh(e, seen.mesh);
        sleep_on_mesh(e, seen.mesh, us);
    } else {
        nanosleep(&(struct timespec){.tv_nsec = ENGINE_NAP_POLL_US * 1000}, NULL);
    }
}

void engine_wake(coll_engine *e)
{
    pthread_cond_broadcast(&e->work);
    pthread_cond_broadcast(&e->ended);
    if (e->place != NULL) node_ring_self(e->place);
    if (e->news_fd >= 0) engine_pass_on(e);
}

int engine_await(coll_engine *e, uint64_t until_ms)
{
    const struct timespec until = {.tv_sec  = (time_t)(until_ms / 1000),
                                   .tv_nsec = (long)(until_ms % 1000) * 1000000};
    return until_ms != 0 ? pthread_cond_timedwait(&e->ended, &e->lock, &until)
                         : pthread_cond_wait(&e->ended, &e->lock);
}
