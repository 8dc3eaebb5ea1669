/* survivor.c - sums ones in a group that shrinks when a member is lost.
 *
 *   survivor CALLS MS [RANK HOW AT]    HOW: kill | stop | hang | exit=CODE, before call AT on rank RANK
 *
 * Each rank prints "rank R of W: CALLS calls, the last sum S among N" and ends with 0.
 */
#include "penstock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, pen_last_error(NULL));
    return 1;
}

static void misbehave(const char *how)
{
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    if (strcmp(how, "stop") == 0) raise(SIGSTOP);
    if (strcmp(how, "hang") == 0) sleep(1000);
    if (strncmp(how, "exit=", 5) == 0) _exit(atoi(how + 5));
}

static pen_status add_up(pen_group **g, float *sum)
{
    const float one = 1;
    pen_status status;
    while ((status = pen_all_reduce(*g, &one, sum, 1, PEN_F32, PEN_SUM, NULL, NULL)) ==
           PEN_PEER_LOST) {
        fprintf(stderr, "%s\n", pen_last_error(NULL));
        pen_group *survivors;
        status = pen_group_shrink(*g, &survivors);
        if (status != PEN_OK) return status;
        *g = survivors;
    }
    return status;
}

int main(int argc, char **argv)
{
    const int calls = argc > 1 ? atoi(argv[1]) : 10, ms = argc > 2 ? atoi(argv[2]) : 0;
    const int culprit = argc > 5 ? atoi(argv[3]) : -1, at = argc > 5 ? atoi(argv[5]) : 0;
    pen_ctx *ctx;
    pen_info info;
    float sum = 0;
    if (pen_init(NULL, &ctx) != PEN_OK) return fail("pen_init");
    if (pen_info_get(ctx, &info) != PEN_OK) return fail("pen_info_get");
    pen_group *g = pen_world(ctx);
    for (int i = 0; i < calls; i++) {
        if (info.rank == culprit && i == at) misbehave(argv[4]);
        if (add_up(&g, &sum) != PEN_OK) return fail("pen_all_reduce");
        usleep((useconds_t)ms * 1000);
    }
    printf("rank %d of %d: %d calls, the last sum %g among %d\n", info.rank, info.world_size, calls,
           (double)sum, pen_group_ranks(g, NULL, 0));
    return pen_finalize(ctx) == PEN_OK ? 0 : fail("pen_finalize");
}
