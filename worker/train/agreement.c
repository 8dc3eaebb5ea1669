/* agreement.c - packs, exchanges and compares the inputs of a step. */
#include "worker/train/agreement.h"

#include "common/base/why.h"
#include "common/system/segment.h"
#include "proto/decision.h"
#include "proto/scalars.h"
#include "worker/collective/fold_order.h"

#include <stdlib.h>
#include <string.h>

typedef struct { /* sent by one rank; rates follow */
    double weight, loss_scale, clip;
    uint32_t skip, snapshot, first, zero;
    wire_scalars scalars;
} shown;

pen_status agreement_init(agreement *a, uint32_t n_rates, int size, pen_error *why)
{
    a->n_rates = n_rates;
    a->room    = size;
    a->bytes   = sizeof(shown) + n_rates * sizeof(double);
    if (size == 1) {
        a->own = a->all = calloc(1, a->bytes);
        if (a->all == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", a->bytes);
    } else {
        a->own = segment_alloc(a->bytes, why);
        if (a->own != NULL) a->all = segment_alloc(a->bytes * (size_t)size, why);
        if (a->all == NULL) return why->status;
    }
    a->ranks = calloc((size_t)size, sizeof *a->ranks);
    return a->ranks != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", size);
}

void agreement_fini(agreement *a)
{
    if (a->own == a->all) {
        free(a->own);
    } else {
        segment_free(a->own);
        segment_free(a->all);
    }
    free(a->ranks);
    *a = (agreement){0};
}

void agreement_show(agreement *a, group_calls *t, const wire_inputs *inputs, uint32_t first)
{
    const shown s = {.weight     = inputs->weight,
                     .loss_scale = inputs->loss_scale,
                     .clip       = inputs->clip,
                     .skip       = inputs->skip,
                     .snapshot   = inputs->snapshot,
                     .first      = first,
                     .scalars    = inputs->scalars};
    memcpy(a->own, &s, sizeof s);
    memcpy(a->own + sizeof s, inputs->rate, inputs->n_rates * sizeof(double));
    agreement_show_again(a, t);
}

void agreement_show_again(agreement *a, group_calls *t)
{
    a->n     = t->group->size < a->room ? t->group->size : a->room;
    a->order = t->group->order;
    memcpy(a->ranks, t->group->ranks, (size_t)a->n * sizeof *a->ranks);
    if (a->all != a->own)
        group_calls_gather(t, PEN_U8, a->bytes, NULL, a->own, a->all,
                           "weights and rates of a step");
}

static void read_shown(const agreement *a, int position, wire_inputs *in)
{
    const char *at = a->all + (size_t)position * a->bytes;
    shown s;
    memcpy(&s, at, sizeof s);
    *in = (wire_inputs){.loss_scale = s.loss_scale,
                        .clip       = s.clip,
                        .weight     = s.weight,
                        .skip       = s.skip != 0,
                        .snapshot   = s.snapshot != 0,
                        .scalars    = s.scalars,
                        .n_rates    = a->n_rates,
                        .rate       = (const double *)(const void *)(at + sizeof s)};
}

pen_status agreement_check(const agreement *a, double *weight_sum, pen_error *why)
{
    wire_inputs first, other;
    double nodes = 0, sum = 0;
    bool ends;
    *weight_sum = 0;
    read_shown(a, 0, &first);
    for (int i = 0; i < a->n; i++) {
        read_shown(a, i, &other);
        if (!decision_inputs_equal(&first, a->ranks[0], &other, a->ranks[i], why))
            return why->status;
    }
    for (int i = 0; i < a->n; i++) {
        read_shown(a, fold_order_at(a->order, i, &ends), &other);
        sum += other.weight;
        if (!ends) continue;
        nodes += sum;
        sum = 0;
    }
    *weight_sum = nodes + sum;
    return PEN_OK;
}

void agreement_scalars(const agreement *a, wire_scalars *sum)
{
    wire_inputs in;
    wire_scalars part = {0};
    bool ends;
    *sum = (wire_scalars){0};
    for (int i = 0; i < a->n; i++) {
        read_shown(a, fold_order_at(a->order, i, &ends), &in);
        scalars_add(&part, &in.scalars);
        if (!ends) continue;
        scalars_add(sum, &part);
        part = (wire_scalars){0};
    }
    scalars_add(sum, &part);
}

int32_t agreement_last_with_weight(const agreement *a)
{
    wire_inputs in;
    int32_t last = 0;
    for (int i = 0; i < a->n; i++) {
        read_shown(a, i, &in);
        if (in.weight > 0) last = i;
    }
    return last;
}

uint32_t agreement_first(const agreement *a)
{
    shown s;
    memcpy(&s, a->all, sizeof s);
    return s.first;
}

bool agreement_wants_snapshot(const agreement *a)
{
    wire_inputs in;
    bool is_wanted = false;
    for (int i = 0; i < a->n; i++) {
        read_shown(a, i, &in);
        is_wanted |= in.snapshot;
    }
    return is_wanted;
}
