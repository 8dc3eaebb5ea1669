/* core_machines.c - the seats of workers, as machines.h looks at them. */
#include "common/why.h"
#include "scheduler/core_members.h"
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

pen_status core_machines_place(const seat_list *workers, pen_error *why)
{
    machines_worker *all = calloc(workers->n + 1, sizeof *all);
    if (!all)
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for %u workers",
                       workers->n);
    for (uint32_t i = 0; i < workers->n; i++) all[i] = look_at(workers->at[i]);
    const pen_status status = machines_place(all, workers->n, why);
    for (uint32_t i = 0; status == PEN_OK && i < workers->n; i++) {
        workers->at[i]->local_rank = all[i].local_rank;
        workers->at[i]->node       = all[i].node;
    }
    free(all);
    return status;
}

void core_machines_place_late(const seat_list *workers, seat *late)
{
    machines_worker one     = look_at(late);
    machines_worker *others = calloc(workers->n + 1, sizeof *others);
    uint32_t n              = 0;
    if (!others) return;
    SEAT_EACH(each, workers)
        if (each != late && each->in_record) others[n++] = look_at(each);
    machines_place_late(&one, others, n);
    free(others);
    late->local_rank = one.local_rank;
    late->node       = one.node;
}
