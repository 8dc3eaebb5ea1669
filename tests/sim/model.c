/* model.c - the task of a simulated job, and the reference that knows what it comes to. */
#include "tests/sim/model.h"

#include "common/crc.h"
#include "tests/sim/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRADIENT_SPAN = 17 }; /* small whole numbers: sums of them are exact in any order */

/* ---- the task -------------------------------------------------------------------------------- */
static uint64_t hash(const model_task *task, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t h = draw_mix(task->seed + 0x9e3779b97f4a7c15u);
    h          = draw_mix(h ^ (a + 0x632be59bd9b4e019u));
    h          = draw_mix(h ^ (b + 0xd1b54a32d192ed03u));
    return draw_mix(draw_mix(h ^ (c << 40)) ^ d);
}

float model_first(const model_task *task, uint32_t tensor, uint64_t element)
{
    return (float)(hash(task, 1, 0, tensor, element) % 1000) / 8 + 1;
}

int32_t model_bad_rank(const model_task *task, uint64_t step)
{
    const uint64_t h = hash(task, 2, step, 0, 0);
    if (h % 100 >= task->nonfinite_percent) return -1;
    return (int32_t)(h / 100 % task->workers);
}

static bool is_bad(const model_task *task, uint32_t rank, uint64_t step, uint32_t tensor,
                   uint64_t element)
{
    if (task->nonfinite_percent == 0 || tensor != 0 || element != 0) return false;
    return model_bad_rank(task, step) == (int32_t)rank && model_weight(task, rank, step) > 0;
}

float model_gradient(const model_task *task, uint32_t rank, uint64_t step, uint32_t tensor,
                     uint64_t element)
{
    if (is_bad(task, rank, step, tensor, element)) return INFINITY;
    const uint64_t h = hash(task, 3 + rank, step, tensor, element);
    return (float)(int)(h % GRADIENT_SPAN) - GRADIENT_SPAN / 2;
}

double model_weight(const model_task *task, uint32_t rank, uint64_t step)
{
    if (!task->weighted) return 1;
    const uint64_t h = hash(task, 4, step, rank, 0);
    return task->mode == MODEL_DECIDE ? (double)(h % 3) : (double)(1 + h % 3);
}

void model_fill_gradient(const model_task *task, const wire_tensor *desc, uint32_t tensor,
                         uint32_t rank, uint64_t step, void *out)
{
    const uint64_t n = plan_tensor_elements(desc);
    for (uint64_t i = 0; i < n; i++) {
        const float g = model_gradient(task, rank, step, tensor, i);
        uint32_t bits;
        memcpy(&bits, &g, sizeof bits);
        if (desc->grad_dtype == PEN_BF16)
            ((uint16_t *)out)[i] = (uint16_t)(bits >> 16); /* exact for these numbers */
        else
            ((float *)out)[i] = g;
    }
}

/* ---- the reference --------------------------------------------------------------------------- */
typedef struct {
    float *values;
    uint32_t *crc; /* [versions] */
    uint64_t versions, capacity;
    uint64_t *clock; /* [workers] */
    bool trained;
} chunk_state;

struct model_reference {
    model_task task;
    const plan *cut;
    chunk_state *chunk;
    model_step *step; /* [task.steps]; bsp: those that were walked */
    uint64_t walked;
    int64_t applied;
    float *sum;
};

static void *need(void *memory)
{
    if (memory == NULL) abort();
    return memory;
}

static uint64_t count_of(const model_reference *self, uint32_t chunk)
{
    return self->cut->chunk[chunk].count;
}

static void add_version(model_reference *self, uint32_t chunk)
{
    chunk_state *k = &self->chunk[chunk];
    if (k->versions == k->capacity) {
        k->capacity = k->capacity * 2 + 16;
        k->crc      = need(realloc(k->crc, k->capacity * sizeof *k->crc));
    }
    k->crc[k->versions++] = crc32c(0, k->values, count_of(self, chunk) * sizeof(float));
}

model_reference *model_create(const model_task *task, const wire_model *wire, const plan *cut)
{
    model_reference *self = need(calloc(1, sizeof *self));
    self->task            = *task;
    self->cut             = cut;
    self->chunk           = need(calloc(cut->n_chunks, sizeof *self->chunk));
    self->step            = need(calloc(task->steps + 1, sizeof *self->step));
    self->sum             = need(calloc(cut->chunk_elements, sizeof *self->sum));
    for (uint32_t c = 0; c < cut->n_chunks; c++) {
        const plan_chunk *at = &cut->chunk[c];
        chunk_state *k       = &self->chunk[c];
        k->trained           = (wire->tensor[at->tensor].flags & PEN_FROZEN) == 0;
        k->clock             = need(calloc(task->workers, sizeof *k->clock));
        k->values            = need(calloc(at->count, sizeof *k->values));
        for (uint64_t i = 0; i < at->count; i++)
            k->values[i] = model_first(task, at->tensor, at->start + i);
        add_version(self, c);
    }
    return self;
}

void model_destroy(model_reference *self)
{
    if (self == NULL) return;
    for (uint32_t c = 0; c < self->cut->n_chunks; c++) {
        free(self->chunk[c].values);
        free(self->chunk[c].crc);
        free(self->chunk[c].clock);
    }
    free(self->chunk);
    free(self->step);
    free(self->sum);
    free(self);
}

/* The rules as textbooks have them, in float as the servers keep values. */
static void update(model_reference *self, uint32_t chunk, const float *gradient, double gscale)
{
    float *p          = self->chunk[chunk].values;
    const float scale = (float)gscale, rate = (float)self->task.rate;
    for (uint64_t i = 0; i < count_of(self, chunk); i++) {
        const float g = scale * gradient[i];
        p[i]          = self->task.sgd ? p[i] - rate * g : p[i] + g;
    }
    add_version(self, chunk);
}

static void add_gradient(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t step,
                         double weight)
{
    const plan_chunk *at = &self->cut->chunk[chunk];
    for (uint64_t i = 0; i < at->count; i++)
        self->sum[i] +=
            (float)weight * model_gradient(&self->task, rank, step, at->tensor, at->start + i);
}

static void sum_all(model_reference *self, uint32_t chunk, uint64_t step)
{
    memset(self->sum, 0, count_of(self, chunk) * sizeof *self->sum);
    for (uint32_t r = 0; r < self->task.workers; r++) {
        const double weight = model_weight(&self->task, r, step);
        if (weight > 0) add_gradient(self, chunk, r, step, weight);
    }
}

/* ---- bsp ------------------------------------------------------------------------------------- */
static double total_weight(const model_reference *self, uint64_t step)
{
    double sum = 0;
    for (uint32_t r = 0; r < self->task.workers; r++) sum += model_weight(&self->task, r, step);
    return sum;
}

/* Squares of whole numbers: their sum is exact, so the order does not matter. */
static double squares(model_reference *self, uint64_t step, bool *finite)
{
    double total = 0;
    for (uint32_t c = 0; c < self->cut->n_chunks; c++) {
        if (!self->chunk[c].trained) continue;
        sum_all(self, c, step);
        for (uint64_t i = 0; i < count_of(self, c); i++) {
            *finite &= isfinite(self->sum[i]) != 0;
            total += (double)self->sum[i] * self->sum[i];
        }
    }
    return total;
}

static model_step decide(model_reference *self, uint64_t step, double divisor)
{
    bool finite    = true;
    model_step s   = {.clip = 1};
    const double q = squares(self, step, &finite);
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

static void walk(model_reference *self)
{
    const uint64_t step  = self->walked;
    const double divisor = total_weight(self, step) * self->task.loss_scale;
    model_step s         = {.clip = 1};
    if (self->task.mode == MODEL_DECIDE) s = decide(self, step, divisor);
    for (uint32_t c = 0; c < self->cut->n_chunks && s.outcome == PEN_APPLIED; c++) {
        if (!self->chunk[c].trained) continue;
        sum_all(self, c, step);
        update(self, c, self->sum, s.clip / divisor);
    }
    self->applied += s.outcome == PEN_APPLIED;
    s.applied                  = self->applied;
    self->step[self->walked++] = s;
}

static bool is_bsp(const model_reference *self)
{
    return self->task.mode == MODEL_DECIDE || self->task.mode == MODEL_EAGER;
}

model_step model_at(model_reference *self, uint64_t step)
{
    while (self->walked <= step) walk(self);
    return self->step[step];
}

bool model_crc(model_reference *self, uint32_t chunk, uint64_t version, uint32_t *crc)
{
    const chunk_state *k = &self->chunk[chunk];
    while (is_bsp(self) && k->trained && k->versions <= version && self->walked < self->task.steps)
        walk(self);
    if (version >= k->versions) return false;
    *crc = k->crc[version];
    return true;
}

uint64_t model_newest(const model_reference *self, uint32_t chunk)
{
    return self->chunk[chunk].versions - 1;
}

/* ---- ssp, async ------------------------------------------------------------------------------ */
const char *model_apply(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t seq)
{
    chunk_state *k = &self->chunk[chunk];
    if (seq < k->clock[rank]) return "a push was applied twice";
    if (seq > k->clock[rank]) return "a push was applied before an earlier one of its rank";
    k->clock[rank]++;
    const double weight = model_weight(&self->task, rank, seq);
    memset(self->sum, 0, count_of(self, chunk) * sizeof *self->sum);
    add_gradient(self, chunk, rank, seq, 1);
    update(self, chunk, self->sum, weight / self->task.loss_scale);
    return NULL;
}

uint64_t model_clock(const model_reference *self, uint32_t chunk, uint32_t rank)
{
    return self->chunk[chunk].clock[rank];
}

uint64_t model_slowest(const model_reference *self, uint32_t chunk)
{
    uint64_t slowest = UINT64_MAX;
    for (uint32_t r = 0; r < self->task.workers; r++)
        if (self->chunk[chunk].clock[r] < slowest) slowest = self->chunk[chunk].clock[r];
    return slowest;
}
