/* core_machines.c - the seats of workers, as machines.h looks at them. */
#include "scheduler/core_state.h"
#include "scheduler/machines.h"

#include <stdlib.h>

static machines_worker look_at(const seat *s)
{
    return (machines_worker){.rank            = s->rank,
                             .host            = s->host,
                             .machine         = s->machine,
                             .said_local_rank = s->said_local_rank,
                             .said_local_size = s->said_local_size,
                             .said_node       = s->said_node,
                             .local_rank      = s->local_rank,
                             .node            = s->node};
}

bool core_machines_place(scheduler_core *core)
{
    pen_error why;
    const seat_list *list    = &core->roster.workers;
    machines_worker *workers = calloc(list->n + 1, sizeof *workers);
    for (uint32_t i = 0; workers && i < list->n; i++) workers[i] = look_at(list->at[i]);
    const pen_status status =
        workers
            ? machines_place(workers, list->n, &why)
            : why_set(&why, PEN_NO_MEMORY, "the scheduler has no memory for %u workers", list->n);
    for (uint32_t i = 0; status == PEN_OK && i < list->n; i++) {
        list->at[i]->local_rank = workers[i].local_rank;
        list->at[i]->node       = workers[i].node;
    }
    free(workers);
    if (status != PEN_OK) core_verdict(core, &why);
    return status == PEN_OK;
}

/* Without memory it stays as its launcher says. */
void core_machines_place_late(const scheduler_core *core, seat *worker)
{
    const seat_list *list   = &core->roster.workers;
    machines_worker late    = look_at(worker);
    machines_worker *others = calloc(list->n + 1, sizeof *others);
    uint32_t n              = 0;
    if (!others) return;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->at[i] != worker && list->at[i]->in_record) others[n++] = look_at(list->at[i]);
    machines_place_late(&late, others, n);
    free(others);
    worker->local_rank = late.local_rank;
    worker->node       = late.node;
}
