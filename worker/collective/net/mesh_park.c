/* mesh_park.c - queues of messages that arrive early, bounded. */
#include "worker/collective/net/mesh_internal.h"

#include "common/base/log.h"
#include "common/containers/list.h"

#include <stdio.h>
#include <stdlib.h>

enum { EAGER_BYTES = 1 << 20, LOG_REFUSED = 40 /* of log_allowed() */ };

size_t mesh_eager_bytes(const mesh *m, int size)
{
    const uint64_t share = m->o.park_bytes_max / 4 / (uint64_t)(size > 0 ? size : 1);
    return share < EAGER_BYTES ? (size_t)share : EAGER_BYTES;
}

void mesh_refuse(mesh *m, const char *what, const wire_peer *head)
{
    stat_add(m->o.stats, STAT_REFUSED, 1);
    if (log_allowed(LOG_REFUSED))
        log_warning("refused %s from rank %d: %s", wire_kind_name((int)head->kind), head->rank,
                    what);
}

bool mesh_park(mesh *m, mesh_early_queue *early_queue, const wire_peer *head, buf *body)
{
    const size_t bytes = sizeof(mesh_parked) + (body != NULL ? body->size : 0);
    const bool is_ours = body == NULL || body != m->placed; /* a place is of its call */
    const bool fits    = is_ours && m->parked_bytes + bytes <= m->o.park_bytes_max;
    mesh_parked *p     = fits ? malloc(sizeof *p) : NULL;
    m->is_starved |= fits && p == NULL;
    if (p == NULL) {
        mesh_refuse(m,
                    fits ? "no memory for early messages"
                         : "no room for early messages; raise park_bytes_max",
                    head);
        return false;
    }
    *p = (mesh_parked){.head = *head, .body = buf_acquire(body)};
    snprintf(p->label, sizeof p->label, "%s", head->label);
    snprintf(p->show_label, sizeof p->show_label, "%s", head->has_show ? head->show.label : "");
    p->head.label      = p->label;
    p->head.show.label = p->show_label;
    LIST_APPEND(*early_queue, p);
    m->parked_bytes += bytes;
    return true;
}

void mesh_unpark(mesh *m, mesh_early_queue *early_queue, mesh_parked *p)
{
    LIST_REMOVE(*early_queue, p);
    m->parked_bytes -= sizeof *p + (p->body != NULL ? p->body->size : 0);
}

mesh_parked *mesh_unpark_first(mesh *m, mesh_early_queue *early_queue)
{
    mesh_parked *p = *early_queue;
    if (p != NULL) mesh_unpark(m, early_queue, p);
    return p;
}

void mesh_drop(mesh_parked *p)
{
    buf_release(p->body);
    free(p);
}

void mesh_clear(mesh *m, mesh_early_queue *early_queue)
{
    for (mesh_parked *p; (p = mesh_unpark_first(m, early_queue)) != NULL;) mesh_drop(p);
}
