/* lanes.c - the first lane where a span fits. */
#include "cli/trace/lanes.h"

int lanes_place(lanes *l, uint64_t begun_ns, uint64_t ended_ns, bool may_nest)
{
    for (uint32_t i = 0; i < LANES_MAX; i++) {
        if (i == l->n) l->lane[l->n++].depth = 0;
        uint32_t *depth = &l->lane[i].depth;
        uint64_t *end   = l->lane[i].end;
        while (*depth > 0 && end[*depth - 1] <= begun_ns) --*depth;
        const bool is_inside =
            may_nest && *depth > 0 && *depth < LANES_DEPTH_MAX && ended_ns <= end[*depth - 1];
        if (*depth > 0 && !is_inside) continue;
        end[(*depth)++] = ended_ns;
        return (int)i;
    }
    return -1;
}
