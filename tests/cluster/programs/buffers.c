/* buffers.c - a program with PEN_BUFFER tensors, which each rank changes in its own way in the forward pass.
 *
 *   buffers [RANK:]NAME=VALUE ...      RANK: limits a word to that rank; settings of the SDK
 *   fewer=1                            registers one buffer less
 * Prints what each rank reads at the beginning of each forward pass, and at the end:  rank 0 step 1 mean 1.5 count 3
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, WORDS_MAX = 32 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fprintf(stderr, "buffers: %s\n", pen_last_error(NULL)), 1;    \
    } while (0)

static float w[N], grad[N], running[2];
static double momentum = 0.25;
static long long count;

static int print_values(int rank, long long step)
{
    printf("rank %d step %lld mean %.9g %.9g count %lld\n", rank, step, running[0], running[1],
           count);
    fflush(stdout);
    return 0;
}

static int add(pen_ctx *ctx, const char *name, pen_dtype dtype, int64_t n, void *values)
{
    const pen_tensor_desc d = {.name  = name,
                               .dtype = dtype,
                               .ndim  = 1,
                               .shape = {n},
                               .flags = PEN_BUFFER,
                               .param = values};
    return pen_register(ctx, &d, NULL);
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX + 1] = {NULL}, *rank_text = getenv("RANK");
    int n_words = 0, fewer = 0;
    const int rank = rank_text != NULL ? atoi(rank_text) : 0;
    for (int i = 1; i < argc && n_words < WORDS_MAX; i++) {
        const char *colon = strchr(argv[i], ':'), *equals = strchr(argv[i], '=');
        const char *word = colon != NULL && colon < equals ? colon + 1 : argv[i];
        if (word != argv[i] && atoi(argv[i]) != rank) continue;
        if (strcmp(word, "fewer=1") == 0)
            fewer = 1;
        else
            words[n_words++] = word;
    }
    pen_ctx *ctx;
    pen_step step;
    pen_status status;
    long long next = 0;
    TRY(pen_init(words, &ctx));
    const pen_tensor_desc d = {
        .name = "w", .ndim = 1, .shape = {N}, .param = w, .grad = grad, .init = "zero"};
    TRY(pen_register(ctx, &d, NULL));
    running[0] = (float)(rank + 1); /* the first values of rank 0 count */
    if (!fewer) TRY(add(ctx, "bn.num_batches_tracked", PEN_I64, 1, &count));
    TRY(add(ctx, "bn.running", PEN_F32, 2, running));
    TRY(pen_commit(ctx));
    while ((status = pen_step_begin(ctx, &step)) == PEN_OK) {
        print_values(rank, (long long)step.index);
        for (int i = 0; i < 2; i++)
            running[i] +=
                (float)(momentum * ((double)(rank + 2 * i) + (double)step.index / 4 - running[i]));
        count += 1 + rank;
        for (int i = 0; i < N; i++) grad[i] = (float)(rank + i);
        TRY(pen_ready(ctx, NULL, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
        next = (long long)step.index + 1;
    }
    if (status != PEN_END) return fprintf(stderr, "buffers: %s\n", pen_last_error(NULL)), 1;
    print_values(rank, next);
    TRY(pen_finalize(ctx));
    return 0;
}
