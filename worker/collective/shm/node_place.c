/* node_place.c - the control segment of a process: doorbell, slots, and those of peers. */
#include "worker/collective/shm/node_internal.h"

#include "common/base/why.h"
#include "common/containers/list.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const uint64_t control_magic = 0x3544414e50454e50u; /* changes with the layout */

enum { SPIN_TURNS = 2000, YIELDS = 4 };

/* ---- creation and destruction ---------------------------------------------------------------- */
pen_status node_place_create(node_place **place, pen_error *why)
{
    node_place *p = calloc(1, sizeof *p);
    if (p == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the state of shared memory");
    p->control = segment_alloc_apart(sizeof *p->control, why);
    if (p->control == NULL || !segment_find(p->control, sizeof *p->control, &p->ref)) {
        free(p);
        return PEN_NO_MEMORY;
    }
    uint64_t *number = &p->control->number;
    if (getrandom(number, sizeof *number, 0) != (ssize_t)sizeof *number) *number = 0;
    p->control->magic = control_magic;
    p->control->bytes = sizeof *p->control;
    cpu_set_t set;
    p->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    p->spin  = SPIN_TURNS;
    pthread_mutex_init(&p->lock, NULL);
    snprintf(p->address, sizeof p->address, "node:%d:%d:%" PRIx64 ":%" PRIu64, (int)p->ref.pid,
             (int)p->ref.fd, p->ref.id, p->ref.size);
    *place = p;
    return PEN_OK;
}

static void leftover_free(node_leftover *l)
{
    for (int i = 0; i < l->size; i++) {
        if (i == l->rank) continue;
        segment_unmap(&l->peer[i].ref);
        /* buffers of its calls; other groups map them again */
        segment_unmap_all_of(l->peer[i].ref.pid);
    }
    free(l->arrays);
    free(l);
}

void node_place_destroy(node_place *p)
{
    if (p == NULL) return;
    LIST_EACH(l, p->leftovers) leftover_free(l);
    pthread_mutex_destroy(&p->lock);
    segment_free(p->control);
    free(p);
}

const char *node_place_address(const node_place *place)
{
    return place->address;
}

uint64_t node_place_number(const node_place *place)
{
    return place->control->number;
}

/* ---- peers ----------------------------------------------------------------------------------- */
static const char other_version[] =
    "process %d has shared memory of another version; use one version of Penstock in a job";

static pen_status read_address(const char *address, segment_ref *ref, pen_error *why)
{
    *ref = (segment_ref){0};
    if (sscanf(address, "node:%" SCNd32 ":%" SCNd32 ":%" SCNx64 ":%" SCNu64, &ref->pid, &ref->fd,
               &ref->id, &ref->size) != 4)
        return why_set(why, PEN_UNREACHABLE, "a worker sent no address of its shared memory");
    if (ref->size >= sizeof(node_control)) return PEN_OK;
    return why_set(why, PEN_UNREACHABLE, other_version, (int)ref->pid);
}

static bool is_control(uint64_t magic, uint64_t bytes)
{
    return magic == control_magic && bytes == sizeof(node_control);
}

pen_status node_open_peer(const char *address, node_peer *peer, pen_error *why)
{
    segment_ref ref;
    void *control     = NULL;
    pen_status status = read_address(address, &ref, why);
    if (status == PEN_OK) status = segment_map(&ref, sizeof *peer->control, &control, why);
    if (status != PEN_OK) return status;
    peer->ref     = ref;
    peer->control = control;
    if (is_control(peer->control->magic, peer->control->bytes)) return PEN_OK;
    segment_unmap(&ref);
    return why_set(why, PEN_UNREACHABLE, other_version, (int)ref.pid);
}

uint64_t node_read_number(const char *address, bool keep)
{
    segment_ref ref;
    node_peer peer = {0};
    struct {
        uint64_t magic, bytes, number;
    } head; /* of a node_control */
    _Static_assert(offsetof(node_control, number) == offsetof(__typeof__(head), number), "");
    if (keep) {
        if (node_open_peer(address, &peer, NULL) != PEN_OK) return 0;
        const uint64_t number = peer.control->number;
        segment_unmap(&peer.ref);
        return number;
    }
    if (read_address(address, &ref, NULL) != PEN_OK ||
        segment_read(&ref, &head, sizeof head, NULL) != PEN_OK)
        return 0;
    return is_control(head.magic, head.bytes) ? head.number : 0;
}

/* A zombie counts as dead: it has no program any more. */
bool node_is_alive(pid_t pid)
{
    char path[64], link[8];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    return readlink(path, link, sizeof link) >= 0 || errno != ENOENT;
}

/* ---- slots ----------------------------------------------------------------------------------- */
node_slot *node_find_slot(node_control *control, uint64_t id)
{
    for (int i = 0; i < NODE_SLOTS; i++)
        if (atomic_load_explicit(&control->group[i], memory_order_acquire) == id)
            return &control->slot[i];
    return NULL;
}

void node_refuse(node_place *p, uint64_t id)
{
    pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->control->refused[p->n_refused++ % NODE_REFUSED], id,
                          memory_order_release);
    pthread_mutex_unlock(&p->lock);
}

bool node_has_refused(const node_control *control, uint64_t id)
{
    for (int i = 0; i < NODE_REFUSED; i++)
        if (atomic_load_explicit(&control->refused[i], memory_order_acquire) == id) return true;
    return false;
}

static bool is_read_by_nobody(const node_leftover *l)
{
    for (int i = 0; i < l->size; i++) {
        if (i == l->rank) continue;
        node_slot *slot = node_find_slot(l->peer[i].control, l->id);
        if (slot != NULL && atomic_load_explicit(&slot->ended, memory_order_acquire) < l->last &&
            node_is_alive(l->peer[i].ref.pid))
            return false;
    }
    return true;
}

static void sweep(node_place *p)
{
    LIST_EACH(l, p->leftovers) {
        if (!is_read_by_nobody(l)) continue;
        LIST_REMOVE(p->leftovers, l);
        atomic_store_explicit(&p->control->group[l->slot], 0, memory_order_release);
        leftover_free(l);
    }
}

static void clear_slot(node_slot *slot)
{
    atomic_store_explicit(&slot->ended, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->revoked, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->busy, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->filled, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->worked, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->taken, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->saved, 0, memory_order_relaxed);
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&slot->entry[i].arrived, 0, memory_order_relaxed);
}

static int take_free_slot(node_place *p, uint64_t id)
{
    for (int i = 0; i < NODE_SLOTS; i++) {
        if (atomic_load_explicit(&p->control->group[i], memory_order_relaxed) != 0) continue;
        clear_slot(&p->control->slot[i]);
        atomic_store_explicit(&p->control->group[i], id, memory_order_release);
        return i;
    }
    return -1;
}

pen_status node_take_slot(node_place *p, uint64_t id, int *slot, pen_error *why)
{
    pthread_mutex_lock(&p->lock);
    sweep(p);
    const int taken = take_free_slot(p, id);
    pthread_mutex_unlock(&p->lock);
    *slot = taken;
    if (taken >= 0) return PEN_OK;
    return why_set(
        why, PEN_NO_MEMORY,
        "this host already has %d groups, the maximum; free unused groups (pen_group_free)",
        (int)NODE_SLOTS);
}

void node_leave_slot(node_place *p, node_leftover *l)
{
    atomic_store_explicit(&p->control->slot[l->slot].ended, UINT64_MAX, memory_order_release);
    pthread_mutex_lock(&p->lock);
    LIST_PREPEND(p->leftovers, l);
    sweep(p);
    pthread_mutex_unlock(&p->lock);
}

/* ---- doorbell -------------------------------------------------------------------------------- */
static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Always counts, since a member that has just looked may not be asleep yet; calls the kernel only for sleepers. */
void node_ring(node_control *control)
{
    atomic_fetch_add(&control->doorbell, 1);
    if (atomic_load(&control->sleeping) != 0 && atomic_exchange(&control->sleeping, 0) != 0)
        syscall(SYS_futex, &control->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void node_ring_self(node_place *place)
{
    node_ring(place->control);
}

uint32_t node_doorbell(const node_place *place)
{
    return atomic_load(&place->control->doorbell);
}

void node_sleep(node_place *place, uint32_t seen, uint64_t timeout_us)
{
    _Atomic uint32_t *bell = &place->control->doorbell;
    const uint32_t spin    = atomic_load_explicit(&place->spin, memory_order_relaxed);
    for (uint32_t i = 0; i < spin; i++) {
        if (atomic_load_explicit(bell, memory_order_acquire) != seen) return;
        relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(bell, memory_order_acquire) != seen) return;
        sched_yield();
    }
    const struct timespec timeout = {.tv_sec  = (time_t)(timeout_us / 1000000),
                                     .tv_nsec = (long)(timeout_us % 1000000) * 1000};
    atomic_store(&place->control->sleeping, 1);
    syscall(SYS_futex, bell, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

void node_set_spin(node_place *place, uint32_t turns)
{
    atomic_store_explicit(&place->spin, turns, memory_order_relaxed);
}
