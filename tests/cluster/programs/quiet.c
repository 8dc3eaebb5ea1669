/* quiet.c - trains and prints nothing; every rank gives the scalar "loss" 0.5:  quiet STEPS [mean]
 *   mean  the program asks for the mean over the ranks, else for nothing
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TRY(call)                                                                                  \
    if ((call) != PEN_OK) return fprintf(stderr, "quiet: %s\n", pen_last_error(NULL)), 1

int main(int argc, char **argv)
{
    static float w[2], g[2];
    const pen_tensor_desc line = {.name = "line", .ndim = 1, .shape = {2}, .param = w, .grad = g};
    char steps[40];
    double mean = 0;
    pen_ctx *ctx;
    pen_step step;
    pen_status s;
    snprintf(steps, sizeof steps, "steps=%ld", argc > 1 ? atol(argv[1]) : 20);
    TRY(pen_init((const char *const[]){"optim=sgd lr=0.5", steps, NULL}, &ctx));
    TRY(pen_register(ctx, &line, NULL));
    TRY(pen_commit(ctx));
    while ((s = pen_step_begin(ctx, &step)) == PEN_OK) {
        usleep(10000);
        pen_step_scalar(ctx, "loss", 0.5);
        pen_ready(ctx, NULL, PEN_ALL);
        TRY(pen_step_end(ctx, &step));
        if (argc > 2) TRY(pen_step_total(ctx, "loss", PEN_AVG, &mean));
    }
    TRY(s == PEN_END ? pen_finalize(ctx) : s);
    return 0;
}
