/* places.c - prints this worker's place, and a sum inside the node and then across nodes.
 *
 *   rank 1: local 1 of 2, node 0 of 1, sum 2
 */
#include "penstock.h"

#include <stdio.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", pen_last_error(NULL));
    return 1;
}

int main(void)
{
    pen_ctx *ctx;
    pen_info info;
    int32_t one = 1, node = 0, sum = 0;
    if (pen_init(NULL, &ctx) != PEN_OK || pen_info_get(ctx, &info) != PEN_OK) return fail();
    pen_group *inside = pen_group_get(ctx, PEN_GROUP_NODE);
    pen_group *across = pen_group_get(ctx, PEN_GROUP_ACROSS);
    if (pen_all_reduce(inside, &one, &node, 1, PEN_I32, PEN_SUM, NULL, NULL) != PEN_OK ||
        pen_all_reduce(across, &node, &sum, 1, PEN_I32, PEN_SUM, NULL, NULL) != PEN_OK)
        return fail();
    printf("rank %d: local %d of %d, node %d of %d, sum %d\n", (int)info.rank, (int)info.local_rank,
           (int)info.local_world_size, (int)info.node, (int)info.nodes, (int)sum);
    return pen_finalize(ctx) == PEN_OK ? 0 : fail();
}
