/* sample.h - draws the next token from what the model expects. */
#ifndef GPT2_SAMPLE_H
#define GPT2_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double temperature; /* 0: always the likeliest token; 1: as often as the model expects it */
    int top_k;          /* only the k likeliest; 0: all */
} sample_rule;

/* Shape      logits is [n], scratch has room for [n]; u in 0..1, 1 not included, decides.
 * Thread     any: no state of its own.  The same arguments give the same token.
 * Source     top-k: Fan, Lewis & Dauphin, "Hierarchical Neural Story Generation", ACL 2018, section 5.4. */
int sample_draw(const float *logits, int n, const sample_rule *rule, double u, float *scratch);

#endif
