/* epoch.c - collects the figures of one epoch. */
#include "epoch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REDUCE_VALUES = 64 }; /* scalars go through the scheduler: a few at a time */

double epoch_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool epoch_init(epoch *e, int64_t steps)
{
    *e = (epoch){
        .steps  = steps,
        .loss   = calloc((size_t)steps, sizeof *e->loss),
        .step_s = calloc((size_t)steps, sizeof *e->step_s),
    };
    return e->loss && e->step_s;
}

void epoch_fini(epoch *e)
{
    free(e->loss);
    free(e->step_s);
    *e = (epoch){0};
}

void epoch_start(epoch *e, int64_t index)
{
    e->number = index / e->steps;
    e->first = e->end = index % e->steps;
    e->begun_s        = epoch_clock();
}

void epoch_add(epoch *e, int64_t index, double loss, double seconds)
{
    const int64_t at = index % e->steps;
    if (at < e->first) e->first = at;
    e->end        = at + 1;
    e->loss[at]   = loss;
    e->step_s[at] = seconds;
}

bool epoch_is_whole(const epoch *e)
{
    return e->end == e->steps;
}

bool epoch_is_empty(const epoch *e)
{
    return e->first == e->end;
}

pen_status epoch_reduce(epoch *e, pen_ctx *ctx, int64_t batch)
{
    for (int64_t at = e->first; at < e->end; at += REDUCE_VALUES) {
        const int64_t n  = e->end - at < REDUCE_VALUES ? e->end - at : REDUCE_VALUES;
        double *loss     = e->loss + at;
        const pen_opts o = {.label = "losses"};
        const pen_status s =
            pen_all_reduce(pen_world(ctx), loss, loss, (size_t)n, PEN_F64, PEN_SUM, &o, NULL);
        if (s != PEN_OK) return s;
        for (int64_t i = 0; i < n; i++) loss[i] /= (double)batch;
    }
    return PEN_OK;
}

double epoch_mean_loss(const epoch *e)
{
    double sum = 0.0;
    for (int64_t at = e->first; at < e->end; at++) sum += e->loss[at];
    return epoch_is_empty(e) ? NAN : sum / (double)(e->end - e->first);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double epoch_step_quantile(const epoch *e, double part)
{
    const size_t n = (size_t)(e->end - e->first);
    double *sorted = n > 0 ? malloc(n * sizeof *sorted) : NULL;
    if (!sorted) return 0.0;
    memcpy(sorted, e->step_s + e->first, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    const double x = sorted[(size_t)(part * (double)(n - 1))];
    free(sorted);
    return x;
}

bool epoch_write_loss(const epoch *e, FILE *out, int digits)
{
    for (int64_t at = e->first; at < e->end; at++)
        if (fprintf(out, "%lld %.*g\n", (long long)(e->number * e->steps + at), digits,
                    e->loss[at]) < 0)
            return false;
    return fflush(out) == 0;
}
