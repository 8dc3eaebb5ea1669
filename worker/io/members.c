/* members.c - changes of the members, each kept until the step that makes it visible. */
#include "worker/io/members.h"

#include <stdlib.h>
#include <string.h>

void members_init(member_list *m)
{
    *m = (member_list){.now = {.after = -1}};
    pthread_mutex_init(&m->lock, NULL);
}

void members_fini(member_list *m)
{
    for (uint32_t i = 0; i < m->n_pending; i++) free(m->pending[i].rank);
    free(m->now.rank);
    pthread_mutex_destroy(&m->lock);
}

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool view_make(members_view *view, uint64_t epoch, int64_t after, const int32_t *rank,
                      uint32_t n)
{
    *view      = (members_view){.epoch = epoch, .after = after, .n = n};
    view->rank = malloc((n + 1) * sizeof *view->rank);
    if (view->rank == NULL) return false;
    if (n > 0) memcpy(view->rank, rank, n * sizeof *rank);
    qsort(view->rank, n, sizeof *rank, ascending);
    return true;
}

bool members_set(member_list *m, uint64_t epoch, const int32_t *rank, uint32_t n)
{
    members_view view;
    if (!view_make(&view, epoch, -1, rank, n)) return false;
    pthread_mutex_lock(&m->lock);
    free(m->now.rank);
    m->now = view;
    pthread_mutex_unlock(&m->lock);
    return true;
}

static void drop_oldest(member_list *m)
{
    free(m->pending[0].rank);
    memmove(m->pending, m->pending + 1, --m->n_pending * sizeof *m->pending);
}

bool members_change(member_list *m, uint64_t epoch, int64_t after, const int32_t *rank, uint32_t n)
{
    members_view view;
    if (!view_make(&view, epoch, after, rank, n)) return false;
    pthread_mutex_lock(&m->lock);
    if (m->n_pending == MEMBERS_PENDING_MAX) drop_oldest(m); /* later changes include it */
    m->pending[m->n_pending++] = view;
    pthread_mutex_unlock(&m->lock);
    return true;
}

bool members_advance(member_list *m, int64_t index)
{
    bool changed = false;
    pthread_mutex_lock(&m->lock);
    while (m->n_pending > 0 && m->pending[0].after < index) {
        free(m->now.rank);
        m->now             = m->pending[0];
        m->pending[0].rank = NULL;
        drop_oldest(m);
        changed = true;
    }
    pthread_mutex_unlock(&m->lock);
    return changed;
}

uint64_t members_epoch(member_list *m)
{
    pthread_mutex_lock(&m->lock);
    const uint64_t epoch = m->now.epoch;
    pthread_mutex_unlock(&m->lock);
    return epoch;
}

uint32_t members_count(member_list *m)
{
    pthread_mutex_lock(&m->lock);
    const uint32_t n = m->now.n;
    pthread_mutex_unlock(&m->lock);
    return n;
}

uint32_t members_ranks(member_list *m, int32_t *rank, uint32_t n)
{
    pthread_mutex_lock(&m->lock);
    const uint32_t all = m->now.n;
    if (n > all) n = all;
    if (n > 0) memcpy(rank, m->now.rank, n * sizeof *rank);
    pthread_mutex_unlock(&m->lock);
    return all;
}
