/* agreement.c - packs, exchanges and compares the inputs of a step. */
#include "worker/train/agreement.h"

#include "common/base/why.h"
#include "common/system/segment.h"
#include "proto/decision.h"
#include "proto/scalars.h"
#include "worker/collective/fold_order.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

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

/* A member may send anything: agreement_check() refuses more scalars than there can be. */
static void read_one(const agreement *a, const char *at, wire_inputs *in)
{
    shown s;
    memcpy(&s, at, sizeof s);
    if (s.scalars.n > WIRE_SCALARS_MAX) s.scalars.n = WIRE_SCALARS_MAX;
    *in = (wire_inputs){.loss_scale = s.loss_scale,
                        .clip       = s.clip,
                        .weight     = s.weight,
                        .skip       = s.skip != 0,
                        .snapshot   = s.snapshot != 0,
                        .scalars    = s.scalars,
                        .n_rates    = a->n_rates,
                        .rate       = (const double *)(const void *)(at + sizeof s)};
}

static void read_shown(const agreement *a, int position, wire_inputs *in)
{
    read_one(a, a->all + (size_t)position * a->bytes, in);
}

static pen_status check_scalars(const agreement *a, int position, pen_error *why)
{
    shown s;
    memcpy(&s, a->all + (size_t)position * a->bytes, sizeof s);
    return scalars_check(&s.scalars, a->ranks[position], why);
}

static void begin_sums(agreement *a, group_calls *t)
{
    wire_inputs in;
    read_one(a, a->own, &in);
    agreement_sums *to = &a->added;
    /* A hash of what must be equal, and of the scalars' names, so that equal members can add scalars by index. */
    uint64_t word[4 + WIRE_SCALARS_MAX] = {0, 0, in.skip, in.scalars.n};
    memcpy(&word[0], &in.loss_scale, sizeof word[0]);
    memcpy(&word[1], &in.clip, sizeof word[1]);
    memcpy(&word[4], in.scalars.name, in.scalars.n * sizeof word[0]);
    const uint64_t hash =
        XXH3_64bits_withSeed(in.rate, in.n_rates * sizeof *in.rate, XXH3_64bits(word, sizeof word));
    *to = (agreement_sums){
        .weight = in.weight, .with_weight = in.weight > 0, .snapshots = in.snapshot};
    if (t->group->rank == 0) {
        shown s;
        memcpy(&s, a->own, sizeof s);
        to->first = s.first;
    }
    for (int k = 0; k < AGREEMENT_HASH_PARTS; k++) {
        to->hash[k]   = (double)(hash >> 16 * k & 0xffff);
        to->square[k] = to->hash[k] * to->hash[k];
    }
    memcpy(to->scalar, in.scalars.sum, in.scalars.n * sizeof *to->scalar);
    group_calls_begin(t, &(coll_call){.kind  = COLL_ALL_REDUCE,
                                      .op    = PEN_SUM,
                                      .dtype = PEN_F64,
                                      .n     = sizeof *to / sizeof(double),
                                      .in    = to,
                                      .out   = &a->sums,
                                      .scale = 1,
                                      .label = "weights and rates of a step"});
}

static void begin_gather(agreement *a, group_calls *t)
{
    group_calls_gather(t, PEN_U8, a->bytes, NULL, a->own, a->all, "weights and rates of a step");
}

void agreement_show_again(agreement *a, group_calls *t)
{
    a->n         = t->group->size < a->room ? t->group->size : a->room;
    a->order     = t->group->order;
    a->is_summed = a->n > AGREEMENT_MEMBERS_SHOWN;
    memcpy(a->ranks, t->group->ranks, (size_t)a->n * sizeof *a->ranks);
    if (a->is_summed)
        begin_sums(a, t);
    else if (a->all != a->own)
        begin_gather(a, t);
}

/* Sums of whole numbers are exact below 2^53: of two million members.  A member may send anything. */
static bool is_exact(double sum)
{
    return sum >= 0 && sum <= 0x1p53;
}

static bool do_sums_say_all(const agreement *a)
{
    const agreement_sums *s = &a->sums;
    const double n          = a->n;
    bool are_equal          = s->with_weight == n && s->first >= 0 && s->first <= UINT32_MAX;
    for (int k = 0; k < AGREEMENT_HASH_PARTS && are_equal; k++)
        are_equal =
            is_exact(s->hash[k]) && is_exact(s->square[k]) &&
            (__int128)n * (__int128)s->square[k] == (__int128)s->hash[k] * (__int128)s->hash[k];
    return are_equal;
}

pen_status agreement_complete(agreement *a, group_calls *t, pen_error *why)
{
    if (!a->is_summed || do_sums_say_all(a)) return PEN_OK;
    a->is_summed = false;
    begin_gather(a, t);
    return group_calls_wait(t, why);
}

pen_status agreement_check(const agreement *a, double *weight_sum, pen_error *why)
{
    wire_inputs first, other;
    double nodes = 0, sum = 0;
    bool ends;
    *weight_sum = a->is_summed ? a->sums.weight : 0;
    if (a->is_summed) return PEN_OK;
    read_shown(a, 0, &first);
    for (int i = 0; i < a->n; i++) {
        if (check_scalars(a, i, why) != PEN_OK) return why->status;
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
    if (a->is_summed) {
        read_one(a, a->own, &in);
        for (uint32_t k = 0; k < in.scalars.n; k++) {
            (void)scalars_set(sum, in.scalars.name[k], a->sums.scalar[k]);
            sum->ranks[k] = in.scalars.ranks[k] * (uint32_t)a->n;
        }
        return;
    }
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
    if (a->is_summed) return a->n - 1;
    for (int i = 0; i < a->n; i++) {
        read_shown(a, i, &in);
        if (in.weight > 0) last = i;
    }
    return last;
}

uint32_t agreement_first(const agreement *a)
{
    shown s;
    if (a->is_summed) return (uint32_t)a->sums.first;
    memcpy(&s, a->all, sizeof s);
    return s.first;
}

bool agreement_wants_snapshot(const agreement *a)
{
    wire_inputs in;
    bool is_wanted = a->is_summed && a->sums.snapshots > 0;
    for (int i = 0; i < a->n && !a->is_summed; i++) {
        read_shown(a, i, &in);
        is_wanted |= in.snapshot;
    }
    return is_wanted;
}
