/* model.c - the task of a simulated job, and the reference that calculates its result. */
#include "tests/sim/model.h"

#include "common/base/crc.h"
#include "tests/sim/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRADIENT_SPAN = 17 }; /* small integers: sums of them are exact in any order */

/* ---- the task -------------------------------------------------------------------------------- */
static uint64_t hash_row(const model_task *task, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = draw_mix(task->seed + 0x9e3779b97f4a7c15u);
    h          = draw_mix(h ^ (a + 0x632be59bd9b4e019u));
    h          = draw_mix(h ^ (b + 0xd1b54a32d192ed03u));
    return draw_mix(h ^ (c << 40));
}

static uint64_t hash(const model_task *task, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return draw_mix(hash_row(task, a, b, c) ^ d);
}

float model_first(const model_task *task, uint32_t tensor, uint64_t element)
{
    return (float)(hash(task, 1, 0, tensor, element) % 1000) / 8 + 1;
}

/* The rank whose gradient of this step is not finite; -1: none. */
static int32_t spoiler(const model_task *task, uint64_t step)
{
    const uint64_t h = hash(task, 2, step, 0, 0);
    if (h % 100 >= task->nonfinite_percent) return -1;
    return (int32_t)(h / 100 % task->workers);
}

static bool is_bad(const model_task *task, uint32_t rank, uint64_t step, uint32_t tensor,
                   uint64_t element)
{
    if (task->nonfinite_percent == 0 || tensor != 0 || element != 0) return false;
    return spoiler(task, step) == (int32_t)rank && model_weight(task, rank, step) > 0;
}

/* A small integer.  row: of a rank's gradient of one step and tensor. */
static float gradient_at(uint64_t row, uint64_t element)
{
    return (float)(int)(draw_mix(row ^ element) % GRADIENT_SPAN) - GRADIENT_SPAN / 2;
}

double model_weight(const model_task *task, uint32_t rank, uint64_t step)
{
    if (!task->weighted) return 1;
    const uint64_t h = hash(task, 4, step, rank, 0);
    switch (task->mode) {
    case MODEL_DECIDE: return (double)(h % 3);
    case MODEL_EAGER: return (double)(1 + h % 3);
    default: return 3; /* equal on all ranks: relative to each other, 1 */
    }
}

void model_fill_gradient(const model_task *task, const wire_tensor *desc, uint32_t tensor,
                         uint32_t rank, uint64_t step, void *out)
{
    const uint64_t n = plan_tensor_elements(desc), row = hash_row(task, 3 + rank, step, tensor);
    for (uint64_t i = 0; i < n; i++) {
        const bool bad = i == 0 && is_bad(task, rank, step, tensor, 0);
        const float g  = bad ? INFINITY : gradient_at(row, i);
        uint32_t bits;
        memcpy(&bits, &g, sizeof bits);
        if (desc->grad_dtype == PEN_BF16)
            ((uint16_t *)out)[i] = (uint16_t)(bits >> 16); /* exact for these numbers */
        else
            ((float *)out)[i] = g;
    }
}

/* ---- the reference --------------------------------------------------------------------------- */
enum { UNKNOWN = -1 };

typedef struct { /* one update */
    uint32_t crc;
    model_ranks ranks;              /* eager: who contributed                          */
    uint32_t rank;                  /* ssp, async: the pusher                          */
    uint64_t incarnation;           /* of that rank                                    */
    uint64_t seq;                   /* of that push                                    */
    uint32_t step[MODEL_RANKS_MAX]; /* of the gradient that each rank contributed      */
} update_row;

typedef struct { /* number seq of a rank's pushes of one chunk */
    uint64_t incarnation, step;
} said_row;

typedef struct {
    said_row *said;
    uint64_t n;
    int64_t clock; /* ssp, async: pushes applied; UNKNOWN: it has not pushed since it joined */
    uint64_t incarnation;
    int64_t seen; /* newest push that it was told counts; -1 */
} rank_state;

typedef struct {
    float *values;
    uint32_t first_crc;
    update_row *row; /* row[v]: from version v to v + 1 */
    uint64_t updates, capacity;
    uint64_t seen; /* newest version that was observed */
    rank_state rank[MODEL_RANKS_MAX];
    model_ranks live;
    bool trained;
} chunk_state;

struct model_reference {
    model_task task;
    const plan *cut;
    chunk_state *chunk;
    model_step *step;        /* [task.steps + 1]; decided steps: those that were walked */
    model_ranks *step_ranks; /* [task.steps + 1] who contributes                        */
    uint64_t walked;
    int64_t applied, seen_step; /* seen: newest step that ended for some rank; -1 */
    float *sum;
};

static void *need(void *memory)
{
    if (memory == NULL) abort();
    return memory;
}

static model_ranks first_ranks(uint32_t n)
{
    model_ranks set = {{0}};
    for (uint32_t r = 0; r < n && r < MODEL_RANKS_MAX; r++)
        set.word[r / 64] |= UINT64_C(1) << r % 64;
    return set;
}

static uint64_t count_of(const model_reference *self, uint32_t chunk)
{
    return self->cut->chunk[chunk].count;
}

static void first_values(model_reference *self, uint32_t chunk)
{
    const plan_chunk *at = &self->cut->chunk[chunk];
    chunk_state *k       = &self->chunk[chunk];
    for (uint64_t i = 0; i < at->count; i++)
        k->values[i] = model_first(&self->task, at->tensor, at->start + i);
    k->updates = 0;
}

static void init_chunk(model_reference *self, const wire_model *wire, uint32_t c)
{
    const plan_chunk *at = &self->cut->chunk[c];
    chunk_state *k       = &self->chunk[c];
    k->trained           = (wire->tensor[at->tensor].flags & PEN_FROZEN) == 0;
    k->values            = need(calloc(at->count, sizeof *k->values));
    k->live              = first_ranks(self->task.workers);
    for (uint32_t r = 0; r < MODEL_RANKS_MAX; r++) k->rank[r].seen = -1;
    first_values(self, c);
    k->first_crc = crc32c(0, k->values, at->count * sizeof(float));
}

model_reference *model_create(const model_task *task, const wire_model *wire, const plan *cut)
{
    model_reference *self = need(calloc(1, sizeof *self));
    self->task            = *task;
    self->cut             = cut;
    self->chunk           = need(calloc(cut->n_chunks, sizeof *self->chunk));
    self->step            = need(calloc(task->steps + 1, sizeof *self->step));
    self->step_ranks      = need(calloc(task->steps + 1, sizeof *self->step_ranks));
    self->sum             = need(calloc(cut->chunk_elements, sizeof *self->sum));
    self->seen_step       = -1;
    for (uint64_t s = 0; s <= task->steps; s++) self->step_ranks[s] = first_ranks(task->workers);
    for (uint32_t c = 0; c < cut->n_chunks; c++) init_chunk(self, wire, c);
    return self;
}

void model_destroy(model_reference *self)
{
    if (self == NULL) return;
    for (uint32_t c = 0; c < self->cut->n_chunks; c++) {
        free(self->chunk[c].values);
        free(self->chunk[c].row);
        for (uint32_t r = 0; r < MODEL_RANKS_MAX; r++) free(self->chunk[c].rank[r].said);
    }
    free(self->chunk);
    free(self->step);
    free(self->step_ranks);
    free(self->sum);
    free(self);
}

/* The rules as in textbooks, in float as on the servers. */
static void update(model_reference *self, uint32_t chunk, const update_row *row,
                   const float *gradient, double gscale)
{
    chunk_state *k    = &self->chunk[chunk];
    float *p          = k->values;
    const float scale = (float)gscale, rate = (float)self->task.rate;
    const uint64_t n  = count_of(self, chunk);
    const bool is_sgd = self->task.sgd;
    for (uint64_t i = 0; i < n; i++) {
        const float g = scale * gradient[i];
        p[i]          = is_sgd ? p[i] - rate * g : p[i] + g;
    }
    if (k->updates == k->capacity) {
        k->capacity = k->capacity * 2 + 16;
        k->row      = need(realloc(k->row, k->capacity * sizeof *k->row));
    }
    k->row[k->updates]     = *row;
    k->row[k->updates].crc = crc32c(0, p, n * sizeof(float));
    k->updates++;
}

/* ---- meaning of identities ------------------------------------------------------------------- */
const char *model_says(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t incarnation,
                       uint64_t seq, uint64_t step)
{
    rank_state *r = &self->chunk[chunk].rank[rank];
    if (seq >= r->n) {
        const uint64_t n = seq * 2 + 16;
        r->said          = need(realloc(r->said, n * sizeof *r->said));
        memset(r->said + r->n, 0, (n - r->n) * sizeof *r->said);
        r->n = n;
    }
    said_row *row = &r->said[seq];
    if (row->incarnation == incarnation && row->step != step)
        return "one identity was given to two pushes";
    *row = (said_row){incarnation, step};
    return NULL;
}

static uint64_t step_of(const model_reference *self, uint32_t chunk, uint32_t rank, uint64_t seq)
{
    const rank_state *r = &self->chunk[chunk].rank[rank];
    return seq < r->n && r->said[seq].incarnation != 0 ? r->said[seq].step : seq;
}

/* ---- bsp ------------------------------------------------------------------------------------- */
static void add_gradient(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t step,
                         double weight)
{
    const plan_chunk *at = &self->cut->chunk[chunk];
    const uint64_t row   = hash_row(&self->task, 3 + rank, step, at->tensor);
    for (uint64_t i = 0; i < at->count; i++)
        self->sum[i] += (float)weight * gradient_at(row, at->start + i);
    if (is_bad(&self->task, rank, step, at->tensor, at->start)) self->sum[0] = INFINITY;
}

/* The contributions of those ranks with number seq. */
static update_row gather(const model_reference *self, uint32_t chunk, uint64_t seq,
                         const model_ranks *ranks)
{
    update_row row = {.ranks = *ranks, .seq = seq};
    MODEL_EACH(r, ranks)
    row.step[r] = (uint32_t)step_of(self, chunk, r, seq);
    return row;
}

static double sum_all(model_reference *self, uint32_t chunk, const update_row *row)
{
    double total = 0;
    memset(self->sum, 0, count_of(self, chunk) * sizeof *self->sum);
    MODEL_EACH(r, &row->ranks)
    {
        const double weight = model_weight(&self->task, r, row->step[r]);
        total += weight;
        if (weight > 0) add_gradient(self, chunk, r, row->step[r], weight);
    }
    return total;
}

/* Squares of integers: their sum is exact, so the order does not matter. */
static double squares(model_reference *self, uint64_t step, const model_ranks *ranks, bool *finite)
{
    double total = 0;
    for (uint32_t c = 0; c < self->cut->n_chunks; c++) {
        if (!self->chunk[c].trained) continue;
        const update_row row = gather(self, c, step, ranks);
        (void)sum_all(self, c, &row);
        const uint64_t n = count_of(self, c);
        for (uint64_t i = 0; i < n; i++) {
            *finite &= isfinite(self->sum[i]) != 0;
            total += (double)self->sum[i] * self->sum[i];
        }
    }
    return total;
}

static double total_weight(const model_reference *self, uint64_t step, const model_ranks *ranks)
{
    double sum = 0;
    MODEL_EACH(r, ranks)
    sum += model_weight(&self->task, r, step);
    return sum;
}

static model_step decide(model_reference *self, uint64_t step, const model_ranks *ranks,
                         double divisor)
{
    bool finite     = true;
    model_step s    = {.clip = 1, .ranks = *ranks, .bad_rank = -1};
    const int32_t b = spoiler(&self->task, step);
    const double q  = squares(self, step, ranks, &finite);
    if (b >= 0 && model_has(ranks, (uint32_t)b)) s.bad_rank = b;
    if (divisor == 0) {
        s.outcome = PEN_SKIPPED_EMPTY;
        return s;
    }
    s.norm = sqrt(q) / divisor;
    if (!finite)
        s.outcome = PEN_SKIPPED_NONFINITE;
    else if (self->task.clip > 0 && s.norm + 1e-6 > self->task.clip)
        s.clip = self->task.clip / (s.norm + 1e-6);
    return s;
}

static void walk_step(model_reference *self)
{
    const uint64_t step      = self->walked;
    const model_ranks *ranks = &self->step_ranks[step];
    const double divisor     = total_weight(self, step, ranks) * self->task.loss_scale;
    model_step s             = decide(self, step, ranks, divisor);
    for (uint32_t c = 0; c < self->cut->n_chunks && s.outcome == PEN_APPLIED; c++) {
        if (!self->chunk[c].trained) continue;
        const update_row row = gather(self, c, step, ranks);
        (void)sum_all(self, c, &row);
        update(self, c, &row, self->sum, s.clip / divisor);
    }
    self->applied += s.outcome == PEN_APPLIED;
    s.applied                  = self->applied;
    self->step[self->walked++] = s;
}

/* eager: one round of one chunk. */
static void walk_round(model_reference *self, uint32_t chunk, const update_row *row)
{
    const double weight = sum_all(self, chunk, row);
    update(self, chunk, row, self->sum, 1 / (weight * self->task.loss_scale));
}

model_step model_at(model_reference *self, uint64_t step)
{
    if (self->task.mode == MODEL_EAGER) /* no decision: every step counts */
        return (model_step){.clip = 1, .bad_rank = -1, .applied = (int64_t)step + 1};
    while (self->walked <= step) walk_step(self);
    return self->step[step];
}

static void next_round(model_reference *self, uint32_t chunk)
{
    const chunk_state *k = &self->chunk[chunk];
    const update_row row = gather(self, chunk, k->updates, &k->live);
    walk_round(self, chunk, &row);
}

bool model_crc(model_reference *self, uint32_t chunk, uint64_t version, uint32_t *crc)
{
    const chunk_state *k   = &self->chunk[chunk];
    const model_mode mode  = self->task.mode;
    const uint64_t highest = self->task.steps, more = 16; /* a latecomer has fewer left of some */
    while (mode == MODEL_DECIDE && k->trained && k->updates < version && self->walked < highest)
        walk_step(self);
    while (mode == MODEL_EAGER && k->trained && k->updates < version && k->updates < highest + more)
        next_round(self, chunk);
    if (version > k->updates) return false;
    *crc = version == 0 ? k->first_crc : k->row[version - 1].crc;
    return true;
}

uint64_t model_newest(const model_reference *self, uint32_t chunk)
{
    return self->chunk[chunk].updates;
}

/* ---- ssp, async ------------------------------------------------------------------------------ */
static void apply(model_reference *self, uint32_t chunk, const update_row *row)
{
    const uint32_t step = row->step[row->rank];
    memset(self->sum, 0, count_of(self, chunk) * sizeof *self->sum);
    add_gradient(self, chunk, row->rank, step, 1);
    update(self, chunk, row, self->sum, 1 / self->task.loss_scale);
}

const char *model_apply(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t seq)
{
    chunk_state *k = &self->chunk[chunk];
    rank_state *r  = &k->rank[rank];
    if (!model_has(&k->live, rank)) return "a push of somebody who is not in the job was applied";
    if (r->clock == UNKNOWN) r->clock = (int64_t)seq; /* it begins where it was told to */
    if ((int64_t)seq < r->clock) return "a push was applied twice";
    if ((int64_t)seq > r->clock) return "a push was applied before an earlier one of its rank";
    r->clock++;
    update_row row  = {.seq = seq, .rank = rank};
    row.step[rank]  = (uint32_t)step_of(self, chunk, rank, seq);
    row.incarnation = r->incarnation;
    apply(self, chunk, &row);
    return NULL;
}

uint64_t model_clock(const model_reference *self, uint32_t chunk, uint32_t rank)
{
    const int64_t clock = self->chunk[chunk].rank[rank].clock;
    return clock == UNKNOWN ? 0 : (uint64_t)clock;
}

uint64_t model_slowest(const model_reference *self, uint32_t chunk)
{
    const chunk_state *k = &self->chunk[chunk];
    uint64_t slowest     = UINT64_MAX;
    MODEL_EACH(r, &k->live)
    if (k->rank[r].clock != UNKNOWN && (uint64_t)k->rank[r].clock < slowest)
        slowest = (uint64_t)k->rank[r].clock;
    return slowest;
}

/* ---- observations ---------------------------------------------------------------------------- */
void model_saw_version(model_reference *self, uint32_t chunk, uint64_t version)
{
    if (version > self->chunk[chunk].seen) self->chunk[chunk].seen = version;
}

void model_saw_step(model_reference *self, uint64_t step)
{
    if ((int64_t)step > self->seen_step) self->seen_step = (int64_t)step;
}

void model_saw_push(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t seq)
{
    rank_state *r = &self->chunk[chunk].rank[rank];
    if ((int64_t)seq > r->seen) r->seen = (int64_t)seq;
}

/* ---- membership ------------------------------------------------------------------------------ */
static model_ranks set_of(const uint64_t incarnation[MODEL_RANKS_MAX])
{
    model_ranks set = {{0}};
    for (uint32_t r = 0; r < MODEL_RANKS_MAX; r++)
        set.word[r / 64] |= (uint64_t)(incarnation[r] != 0) << r % 64;
    return set;
}

/* Recalculated on demand: the history determines it. */
static void forget_steps(model_reference *self)
{
    for (uint32_t c = 0; c < self->cut->n_chunks; c++) first_values(self, c);
    self->walked  = 0;
    self->applied = 0;
}

const char *model_settle(model_reference *self, uint64_t step,
                         const uint64_t incarnation[MODEL_RANKS_MAX])
{
    if ((int64_t)step <= self->seen_step) return "a step that had ended for somebody was dropped";
    for (uint64_t s = step; s <= self->task.steps; s++) self->step_ranks[s] = set_of(incarnation);
    if (self->walked > step) forget_steps(self);
    return NULL;
}

/* Clocks when the chunk had `version` updates, and values. */
static const char *forget_updates(model_reference *self, uint32_t chunk, uint64_t version)
{
    chunk_state *k      = &self->chunk[chunk];
    const uint64_t n    = k->updates;
    const bool is_eager = self->task.mode == MODEL_EAGER;
    for (uint64_t v = n; v-- > version && !is_eager;) {
        rank_state *r = &k->rank[k->row[v].rank];
        if (r->incarnation != k->row[v].incarnation) continue;
        if ((int64_t)k->row[v].seq <= r->seen) return "a push that was said to count was lost";
        r->clock = (int64_t)k->row[v].seq;
    }
    first_values(self, chunk);
    for (uint64_t v = 0; v < version; v++) {
        const update_row row = k->row[v];
        if (is_eager)
            walk_round(self, chunk, &row);
        else
            apply(self, chunk, &row);
    }
    return NULL;
}

const char *model_settle_chunk(model_reference *self, uint32_t chunk, uint64_t version,
                               const uint64_t incarnation[MODEL_RANKS_MAX])
{
    chunk_state *k    = &self->chunk[chunk];
    const char *wrong = NULL;
    if (version < k->seen) return "a version that somebody had got was lost";
    if (version > k->updates) return "a new primary has a version that no primary made";
    if (version < k->updates) wrong = forget_updates(self, chunk, version);
    k->live = set_of(incarnation);
    for (uint32_t r = 0; r < MODEL_RANKS_MAX; r++) {
        rank_state *state = &k->rank[r];
        const bool is_new = incarnation[r] != 0 && incarnation[r] != state->incarnation;
        if (!is_new) continue;
        if (state->incarnation != 0 || r >= self->task.workers) state->clock = UNKNOWN;
        state->incarnation = incarnation[r];
        state->seen        = -1;
    }
    return wrong;
}
