/* leaver.c - a training loop that one rank leaves:  leaver STEPS RANK AT HOW [meet]
 *   HOW   finalize   calls pen_finalize() in the middle of step AT, like a program that fails cleanly
 *         exit       exit(0) in step AT, without pen_finalize()
 *         crash      exit(1) in step AT, and so does each process that replaces it
 *         kill       SIGKILL in step AT
 *         early      pen_finalize() before pen_commit()
 *         cross      stays, and calls pen_all_reduce() where the others end the step
 *   meet  adds up the loss by pen_all_reduce() after each step, instead of pen_step_scalar()
 * A rank that finishes prints "rank R: S steps, loss L among N"; a rank that cannot continue prints
 * why, and ends with 1.
 */
#include "penstock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(pen_ctx *ctx)
{
    fprintf(stderr, "%s\n", pen_last_error(NULL));
    pen_finalize(ctx);
    return 1;
}

static int leave(pen_ctx *ctx, const char *how)
{
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    if (strcmp(how, "exit") == 0) exit(0);
    if (strcmp(how, "crash") == 0) {
        usleep(100000); /* so that the job knows the step; at once it may be a step behind */
        exit(1);
    }
    pen_finalize(ctx);
    return 3;
}

int main(int argc, char **argv)
{
    static float w[2], g[2];
    const long steps = argc > 1 ? atol(argv[1]) : 20, at = argc > 4 ? atol(argv[3]) : -1;
    const int culprit = argc > 4 ? atoi(argv[2]) : -1, meets = argc > 5;
    const char *how            = argc > 4 ? argv[4] : "";
    const pen_tensor_desc line = {.name = "line", .ndim = 1, .shape = {2}, .param = w, .grad = g};
    double loss                = 0;
    long done                  = 0;
    pen_ctx *ctx;
    pen_info info;
    pen_step step;
    if (pen_init((const char *const[]){"optim=sgd lr=0.1", NULL}, &ctx) != PEN_OK ||
        pen_info_get(ctx, &info) != PEN_OK)
        return fail(ctx);
    /* The replacement of a dead process does not die again. */
    const int is_new = strcmp(how, "crash") != 0 && getenv("TORCHELASTIC_RESTART_COUNT") != NULL &&
                       atoi(getenv("TORCHELASTIC_RESTART_COUNT")) > 0;
    if (pen_register(ctx, &line, NULL) != PEN_OK) return fail(ctx);
    if (info.rank == culprit && strcmp(how, "early") == 0) return leave(ctx, how);
    if (pen_commit(ctx) != PEN_OK) return fail(ctx);
    for (; done < steps; done++) {
        if (pen_step_begin(ctx, &step) != PEN_OK) return fail(ctx);
        if (step.index >= steps) break;
        if (info.rank == culprit && step.index == at && strcmp(how, "cross") == 0 &&
            pen_all_reduce(pen_world(ctx), &loss, &loss, 1, PEN_F64, PEN_SUM, NULL, NULL) != PEN_OK)
            return fail(ctx);
        if (info.rank == culprit && step.index == at && !is_new) return leave(ctx, how);
        g[0] = g[1] = loss = 1;
        usleep(20000);
        pen_step_scalar(ctx, "loss", loss);
        pen_ready(ctx, NULL, PEN_ALL);
        if (pen_step_end(ctx, &step) != PEN_OK) return fail(ctx);
        if (meets &&
            pen_all_reduce(pen_world(ctx), &loss, &loss, 1, PEN_F64, PEN_SUM, NULL, NULL) != PEN_OK)
            return fail(ctx);
        if (!meets && pen_step_total(ctx, "loss", PEN_SUM, &loss) != PEN_OK) return fail(ctx);
    }
    printf("rank %d: %ld steps, loss %g among %d\n", info.rank, done, loss,
           pen_size(pen_world(ctx)));
    return pen_finalize(ctx) == PEN_OK ? 0 : 1;
}
