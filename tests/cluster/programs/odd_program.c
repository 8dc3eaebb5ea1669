/* odd_program.c - trains, and disturbs the SDK as programs do by accident:  odd_program [up]
 *
 * It has functions with the names of SDK internals, computes in another floating-point environment
 * (linked with -Ofast: denormal numbers are zero; with `up`: rounding up), and trains denormal
 * numbers, whose bits show in which environment the SDK computed. It prints the digest of its
 * parameters, and fails if its own environment has changed. */
#include "penstock.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { N = 256 };
#define TRY(call)                                                                                  \
    if ((call) != PEN_OK) return fprintf(stderr, "%s\n", pen_last_error(NULL)), 1

int crc32c(void);
int buf_init(void);
int log_line(void);
static int n_strays; /* calls of the SDK that came here by mistake */

int crc32c(void)
{
    return ++n_strays;
}

int buf_init(void)
{
    return ++n_strays;
}

int log_line(void)
{
    return ++n_strays;
}

/* Set by bits, so that no environment changes it: every second element is denormal, the others are
 * from 1/32 to 1/2. */
static float number(uint32_t seed, uint32_t i)
{
    const uint32_t random = (seed + i) * 2654435761u;
    const uint32_t power  = i % 2 == 0 ? 0 : 122 + (random >> 3) % 4;
    const uint32_t bits   = power << 23 | random >> 9;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#if defined(__x86_64__)
static uint32_t environment(void)
{
    return __builtin_ia32_stmxcsr() & ~0x3fu; /* without the exception flags */
}

static void round_up(void)
{
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x4000);
}
#else
static uint32_t environment(void)
{
    return 0;
}

static void round_up(void) {}
#endif

int main(int argc, char **argv)
{
    static float w[N], g[N];
    const pen_tensor_desc all = {.name = "w", .ndim = 1, .shape = {N}, .param = w, .grad = g};
    pen_ctx *ctx;
    pen_tensor *t;
    pen_step step;
    pen_status s;
    uint32_t crc;
    if (argc > 1 && strcmp(argv[1], "up") == 0) round_up();
    const uint32_t before = environment();
    for (uint32_t i = 0; i < N; i++) w[i] = number(7, i);
    TRY(pen_init((const char *const[]){"optim=sgd lr=0.3 momentum=0.9", "steps=5", NULL}, &ctx));
    TRY(pen_register(ctx, &all, &t));
    TRY(pen_commit(ctx));
    while ((s = pen_step_begin(ctx, &step)) == PEN_OK) {
        const uint32_t seed =
            (uint32_t)step.index * 1000 + (uint32_t)pen_rank(pen_world(ctx)) * 100000;
        for (uint32_t i = 0; i < N; i++) g[i] = number(seed, i);
        TRY(pen_ready(ctx, t, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
        if (environment() != before) return fprintf(stderr, "the environment has changed\n"), 1;
    }
    if (s != PEN_END) TRY(s);
    TRY(pen_digest(ctx, &crc));
    if (pen_rank(pen_world(ctx)) == 0) printf("%08x\n", (unsigned)crc);
    TRY(pen_finalize(ctx));
    if (n_strays > 0) return fprintf(stderr, "%d calls of the SDK came here\n", n_strays), 1;
    return 0;
}
