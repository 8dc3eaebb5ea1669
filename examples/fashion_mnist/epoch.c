/* epoch.c - collects the figures of one epoch. */
#include "epoch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
