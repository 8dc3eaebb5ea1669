/* sample.c - temperature, the k likeliest, one draw. */
#include "sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int downwards(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static int likeliest(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* The smallest logit that may be drawn. */
static float find_least(const float *logits, int n, int top_k, float *scratch)
{
    if (top_k <= 0 || top_k >= n) return -INFINITY;
    memcpy(scratch, logits, (size_t)n * sizeof *scratch);
    qsort(scratch, (size_t)n, sizeof *scratch, downwards);
    return scratch[top_k - 1];
}

int sample_draw(const float *logits, int n, const sample_rule *rule, double u, float *scratch)
{
    const int best = likeliest(logits, n);
    if (rule->temperature <= 0) return best;
    const float least = find_least(logits, n, rule->top_k, scratch);
    double sum        = 0;
    for (int i = 0; i < n; i++) {
        const bool may = logits[i] >= least;
        scratch[i] = may ? (float)exp(((double)logits[i] - logits[best]) / rule->temperature) : 0;
        sum += scratch[i];
    }
    double left = u * sum;
    for (int i = 0; i < n; i++) {
        left -= scratch[i];
        if (left < 0) return i;
    }
    return best; /* rounding, or logits that are not numbers */
}
