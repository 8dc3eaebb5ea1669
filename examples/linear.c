/* linear.c - the smallest whole program: learns the line y = 3 x + 1.
 *
 * Alone:        ./linear
 * Two workers:  penstock run --nproc-per-node 2 --servers 1 ./linear
 * Both print the same losses, because both see the same global batches of 64 points.
 */
#include "penstock.h"
#include <stdio.h>
/* clang-format off */
#define TRY(call) if ((call) != PEN_OK) return fprintf(stderr, "%s\n", pen_last_error(NULL)), 1
/* clang-format on */

int main(void)
{
    static float w[2], g[2];
    const pen_tensor_desc line = {.name = "line", .ndim = 1, .shape = {2}, .param = w, .grad = g};
    pen_ctx *ctx;
    pen_step step;
    pen_status s;
    TRY(pen_init((const char *const[]){"optim=sgd lr=0.2", "steps=20", NULL}, &ctx));
    TRY(pen_register(ctx, &line, NULL));
    TRY(pen_commit(ctx)); /* all ranks agree; w holds rank 0's values */

    while ((s = pen_step_begin(ctx, &step)) == PEN_OK) {
        const int rank = pen_rank(pen_world(ctx)), ranks = pen_size(pen_world(ctx)); /* now */
        double loss = g[0] = g[1] = 0;
        for (int i = rank; i < 64; i += ranks) { /* this rank's share of the batch */
            float x = (step.index * 64 + i) * 37 % 97 / 97.f, error = w[0] * x + w[1] - 3 * x - 1;
            g[0] += 2 * error * x * ranks / 64; /* Penstock takes the mean over the ranks */
            g[1] += 2 * error * ranks / 64;
            loss += error * error / 64;
        }
        pen_step_scalar(ctx, "loss", loss); /* summed over the ranks, with the gradients */
        pen_ready(ctx, NULL, PEN_ALL);      /* all gradients are final: send them */
        TRY(pen_step_end(ctx, &step));      /* w has the new values */
        TRY(pen_step_total(ctx, "loss", PEN_SUM, &loss));
        if (rank == 0) printf("step %2d   loss %.4f\n", (int)step.index, loss);
    }
    TRY(s == PEN_END ? pen_finalize(ctx) : s);
}
