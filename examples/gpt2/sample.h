/* sample.h - draws the next token from the model's distribution. */
#ifndef GPT2_SAMPLE_H
#define GPT2_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double temperature; /* 0: the likeliest token; 1: the model's distribution */
    int top_k;          /* only the k likeliest; 0: all */
} sample_rule;

/* Shape      logits is [n], scratch has room for [n]; u in 0..1, 1 not included, decides.
 * Thread     any: no state of its own.  The same arguments give the same token.
 * Source     top-k: Fan, Lewis & Dauphin, "Hierarchical Neural Story Generation", ACL 2018, section 5.4. */
int sample_draw(const float *logits, int n, const sample_rule *rule, double u, float *scratch);

#endif
