/* shard_states.c - workers' states for a snapshot, beside tensors: sent with their pushes, stored with the capture.
 *
 * Only those of a few steps are kept for each rank, the last ones that came: so memory is bounded by the number of ranks,
 * whatever steps they name.
 */
#include "server/shard/shard_state.h"

#include "common/base/log.h"
#include "common/snapshot/bundle.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_KEPT = 4 }; /* a fast rank may be ahead of the capture */

struct shard_states {
    struct shard_states *next; /* ordered by rank; of one rank, the last that came first */
    int64_t step;              /* of the snapshot they belong to */
    int32_t rank;
    size_t size;
    uint8_t bytes[];
};

static void forget(shard_states **at)
{
    shard_states *gone = *at;
    *at                = gone->next;
    free(gone);
}

static void forget_before(shard *s, int64_t step)
{
    for (shard_states **at = &s->states; *at != NULL;)
        if ((*at)->step < step)
            forget(at);
        else
            at = &(*at)->next;
}

static bool has(const shard *s, int32_t rank, int64_t step)
{
    for (const shard_states *each = s->states; each != NULL; each = each->next)
        if (each->rank == rank && each->step == step) return true;
    return false;
}

void shard_states_take(shard *s, const wire_data *d)
{
    /* Messages of undecided chunks have no step; all pushes of a step have the same number. */
    const int64_t step = (int64_t)((d->n > 0 && d->seq != NULL ? d->seq[0] : d->step) + 1);
    if (!d->has_inputs || d->inputs.states_bytes == 0 || d->rank < 0 ||
        (uint32_t)d->rank >= s->setup.world_size || has(s, d->rank, step))
        return;
    shard_states *kept = malloc(sizeof *kept + d->inputs.states_bytes);
    if (kept == NULL) {
        shard_no_memory(s);
        return;
    }
    *kept = (shard_states){.step = step, .rank = d->rank, .size = d->inputs.states_bytes};
    memcpy(kept->bytes, d->inputs.states, kept->size);
    shard_states **at = &s->states;
    while (*at != NULL && (*at)->rank < d->rank) at = &(*at)->next;
    kept->next = *at;
    *at        = kept;
    for (int n = 0; *at != NULL && (*at)->rank == d->rank && n < STEPS_KEPT; n++) at = &(*at)->next;
    if (*at != NULL && (*at)->rank == d->rank) forget(at);
}

void shard_states_give(shard *s, shard_capture *capture)
{
    for (const shard_states *each = s->states; each != NULL; each = each->next) {
        if (each->step != capture->step ||
            bundle_merge(&capture->states, &capture->states_bytes, each->bytes, each->size))
            continue;
        if (bundle_makes_sense(each->bytes, each->size))
            shard_no_memory(s);
        else
            log_warning("the states of rank %d are not in the snapshot of step %lld: they make no "
                        "sense",
                        each->rank, (long long)capture->step);
    }
    forget_before(s, capture->step);
}

void shard_states_fini(shard *s)
{
    while (s->states != NULL) forget(&s->states);
}
