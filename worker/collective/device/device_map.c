/* device_map.c - memory of other members: checks that it is theirs, and a cache of mappings. */
#include "worker/collective/device/device_internal.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include <unistd.h>

static device_mapping *cache_entry(device_team *team, int who, const device_ref *ref)
{
    device_mapping *list = team->mapped + (size_t)who * DEVICE_CACHED, *oldest = list;
    for (int i = 0; i < DEVICE_CACHED; i++) {
        if (list[i].base != NULL && list[i].ref.id == ref->id && list[i].ref.base == ref->base)
            return &list[i];
        if (list[i].used < oldest->used) oldest = &list[i];
    }
    return oldest;
}

/* The mapping of its control segment has proven a member's process. */
pen_status device_check_process(const device_team *team, int who, const device_ref *ref,
                                uint64_t process, pen_error *why)
{
    const int32_t pid = who == team->rank ? (int32_t)getpid() : team->peer_ref[who].pid;
    if (ref->pid == pid && (process != device_process() || pid == (int32_t)getpid())) return PEN_OK;
    return why_set(why, PEN_CORRUPT, "rank %d names memory of another process", team->ranks[who]);
}

pen_status device_check_room(const device_team *team, int who, const device_ref *mapped,
                             uint64_t offset, size_t bytes, pen_error *why)
{
    const size_t room = team->ops->room != NULL ? team->ops->room(mapped) : SIZE_MAX;
    if (offset <= room && bytes <= room - offset) return PEN_OK;
    return why_set(why, PEN_CORRUPT, "rank %d names %zu bytes beyond the end of its memory",
                   team->ranks[who], bytes);
}

/* Ends a mapping, or puts it aside if the device may still use it.  This is one of the few calls that ask an event. */
static pen_status end_mapping(device_team *team, device_mapping *m, pen_error *why)
{
    if (team->is_unsettled && team->ops->event_done(team->end, NULL) == PEN_AGAIN) {
        if (team->n_unused == DEVICE_RETIRED || !VEC_MORE(team->unused, team->n_unused))
            return why_set(
                why, PEN_NO_MEMORY,
                "the device uses %zu allocations of other ranks that were replaced since; "
                "let it catch up, or use the same buffers again",
                team->n_unused);
        team->unused[team->n_unused++] = m->ref;
    } else {
        while (team->n_unused > 0) team->ops->unmap(&team->unused[--team->n_unused]);
        team->ops->unmap(&m->ref);
    }
    *m = (device_mapping){0};
    return PEN_OK;
}

/* A program has few tensors and uses them in every step; opening one takes longer than reducing it. */
pen_status device_map_cached(device_team *team, int who, const device_ref *said, size_t bytes,
                             char **data, pen_error *why)
{
    const device_ref ref = *said; /* its owner may change it at any time */
    device_mapping *m    = cache_entry(team, who, &ref);
    pen_status status    = device_check_process(team, who, &ref, ref.process, why);
    if (status != PEN_OK) return status;
    if (m->base != NULL && (m->ref.id != ref.id || m->ref.base != ref.base))
        status = end_mapping(team, m, why);
    if (status != PEN_OK) return status;
    if (m->base == NULL) {
        void *base    = NULL;
        m->ref        = ref;
        m->ref.offset = 0;
        status        = team->ops->map(&m->ref, &base, why);
        if (status != PEN_OK) return status;
        m->base = base;
    }
    m->used = ++team->uses;
    *data   = m->base + ref.offset;
    return device_check_room(team, who, &m->ref, ref.offset, bytes, why);
}
