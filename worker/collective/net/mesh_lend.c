/* mesh_lend.c - memory lent to the transport, and how it comes back. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/clock.h"
#include "common/containers/list.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

struct mesh_tx_ref {
    buf base;
    mesh *m;
    mesh_tx_ref *next, *prev; /* in mesh.lent */
    mesh_tx_ref *below;       /* on a stack: returned, or spare */
    mesh_link *link;
    runner_debt *debt;
    bool is_doubtful, is_back; /* its connection ended: counts as lent until mesh_decide() */
};

/* Runs on the thread that drops the transport's last reference. */
static void give_back(buf *base)
{
    mesh_tx_ref *h = (mesh_tx_ref *)base;
    mesh *m        = h->m;
    atomic_fetch_add(&m->returning, 1);
    mesh_tx_ref *top = atomic_load(&m->returned);
    do h->below = top;
    while (!atomic_compare_exchange_weak(&m->returned, &top, h));
    if (atomic_load(&m->wants_returns) && atomic_exchange(&m->wants_returns, false))
        eventfd_write(m->wake_fd, 1);
    atomic_fetch_sub(&m->returning, 1);
}

static buf *lend(mesh *m, mesh_link *l, const void *data, size_t bytes, runner_debt *debt)
{
    mesh_tx_ref *h = m->spare;
    if (h != NULL)
        m->spare = h->below;
    else
        h = malloc(sizeof *h);
    if (h == NULL) return NULL;
    *h = (mesh_tx_ref){.m = m, .link = l, .debt = debt};
    buf_init(&h->base, (void *)(uintptr_t)data, bytes, give_back);
    LIST_PREPEND(m->lent, h);
    debt->n++;
    return &h->base;
}

static buf *copy(const void *data, size_t bytes)
{
    buf *b = buf_new(bytes);
    if (b != NULL) memcpy(b->data, data, bytes);
    return b;
}

buf *mesh_lend(mesh *m, mesh_link *l, const void *data, size_t bytes, runner_debt *debt)
{
    return m->copies ? copy(data, bytes) : lend(m, l, data, bytes, debt);
}

static void settle_one(mesh *m, mesh_tx_ref *h)
{
    if (h->is_doubtful) {
        h->is_back = true;
        return;
    }
    h->debt->n--;
    LIST_REMOVE(m->lent, h);
    h->below = m->spare;
    m->spare = h;
}

void mesh_collect(mesh *m)
{
    if (atomic_load(&m->returned) == NULL) return;
    mesh_tx_ref *h = atomic_exchange(&m->returned, NULL);
    for (mesh_tx_ref *next; h != NULL; h = next) {
        next = h->below;
        settle_one(m, h);
    }
}

/* Set before the last check, so that the first return after that check wakes the mesh. */
void mesh_await_returns(mesh *m)
{
    mesh_collect(m);
    if (m->lent == NULL) return;
    atomic_store(&m->wants_returns, true);
    mesh_collect(m);
}

bool mesh_is_owing(const mesh *m, const void *owner)
{
    const mesh_tx_ref *h = m->lent;
    while (h != NULL && h->debt->owner != owner) h = h->next;
    return h != NULL;
}

/* Its connection ended and data was lost: the debt records whose. */
static void cancel(mesh_tx_ref *h)
{
    h->debt->is_cancelled = true;
    h->debt->cut_by       = h->link->rank;
}

void mesh_cancel_lent(mesh *m, const mesh_link *l)
{
    for (mesh_tx_ref *h = m->lent; h != NULL; h = h->next)
        if (h->link == l) cancel(h);
}

void mesh_doubt(mesh *m, const mesh_link *l)
{
    for (mesh_tx_ref *h = m->lent; h != NULL; h = h->next)
        if (h->link == l) h->is_doubtful = true;
}

static void decide(mesh *m, mesh_tx_ref *h, bool is_cancelled)
{
    if (is_cancelled) cancel(h);
    h->is_doubtful = false;
    if (h->is_back) settle_one(m, h);
}

void mesh_decide(mesh *m, int rank, bool is_cancelled)
{
    LIST_EACH(h, m->lent)
        if (h->is_doubtful && h->link->rank == rank) decide(m, h, is_cancelled);
}

void mesh_decide_of(mesh *m, const void *owner)
{
    LIST_EACH(h, m->lent)
        if (h->is_doubtful && h->debt->owner == owner) decide(m, h, true);
}

void mesh_cancel_lent_of(mesh *m, const void *owner)
{
    for (mesh_tx_ref *h = m->lent; h != NULL; h = h->next) {
        if (h->debt->owner != owner || h->link->t == NULL) continue;
        mesh_cancel_lent(m, h->link);
        h->link->is_stuck = true;
    }
}

/* References come back soon after all links are closed; a thread that still pushes one uses this memory. */
bool mesh_has_all_back(mesh *m)
{
    const uint64_t until = clock_ms(&clock_real) + MESH_CANCEL_MS;
    for (;;) {
        for (int i = 0; m->lent != NULL && i < m->n_peers; i++) mesh_decide(m, i, true);
        mesh_collect(m);
        if (m->lent == NULL && atomic_load(&m->returning) == 0) return true;
        if (clock_ms(&clock_real) > until) return false;
        poll(NULL, 0, 1);
    }
}

void mesh_free_tx_refs(mesh *m)
{
    for (mesh_tx_ref *h = m->spare, *next; h != NULL; h = next) {
        next = h->below;
        free(h);
    }
}
