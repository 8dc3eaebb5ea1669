#include "scheduler/meet.h"
#include "common/why.h"
#include "proto/plan.h"
#include "scheduler/sentence.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- reducing -------------------------------------------------------------------------------- */
/* One function per type: folds `in` into `acc`.  MIN and MAX pass NaN on; integers wrap, so they
 * are added and multiplied as unsigned. */
#define FOLD(name, type, wide)                                                                     \
    static void name(void *acc, const void *in, uint64_t count, int32_t op)                        \
    {                                                                                              \
        type *a       = acc;                                                                       \
        const type *b = in;                                                                        \
        for (uint64_t i = 0; i < count; i++) {                                                     \
            switch (op) {                                                                          \
            case PEN_PROD: a[i] = (type)((wide)a[i] * (wide)b[i]); break;                          \
            case PEN_MIN: a[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i]; break;                 \
            case PEN_MAX: a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i]; break;                 \
            default: a[i] = (type)((wide)a[i] + (wide)b[i]); break;                                \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void name##_divide(void *acc, uint64_t count, uint32_t n)                               \
    {                                                                                              \
        type *a = acc;                                                                             \
        for (uint64_t i = 0; i < count; i++) a[i] /= (type)n;                                      \
    }
FOLD(fold_f32, float, float)
FOLD(fold_f64, double, double)
FOLD(fold_i32, int32_t, uint32_t)
FOLD(fold_i64, int64_t, uint64_t)
FOLD(fold_u64, uint64_t, uint64_t)
#undef FOLD

typedef struct {
    int32_t dtype;
    void (*fold)(void *acc, const void *in, uint64_t count, int32_t op);
    void (*divide)(void *acc, uint64_t count, uint32_t n);
} fold_row;

static const fold_row folds[] = {
    {PEN_F32, fold_f32, fold_f32_divide}, {PEN_F64, fold_f64, fold_f64_divide},
    {PEN_I32, fold_i32, fold_i32_divide}, {PEN_I64, fold_i64, fold_i64_divide},
    {PEN_U64, fold_u64, fold_u64_divide},
};

static const fold_row *fold_find(int32_t dtype)
{
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++)
        if (folds[i].dtype == dtype) return &folds[i];
    return NULL;
}

static const char *op_name(int32_t op)
{
    static const char *const names[] = {[PEN_SUM]  = "SUM",
                                        [PEN_AVG]  = "AVG",
                                        [PEN_PROD] = "PROD",
                                        [PEN_MIN]  = "MIN",
                                        [PEN_MAX]  = "MAX"};
    return op >= 0 && op < (int32_t)(sizeof names / sizeof *names) && names[op] ? names[op] : "?";
}

static bool is_supported(const meet *m)
{
    return m->op < 0 || (fold_find(m->dtype) && *op_name(m->op) != '?');
}

static void reduce(meet *m, uint32_t n_ranks)
{
    const fold_row *row = fold_find(m->dtype);
    for (uint32_t rank = 1; rank < n_ranks; rank++)
        row->fold(m->data, m->data + rank * m->size, m->count, m->op);
    if (m->op == PEN_AVG) row->divide(m->data, m->count, n_ranks);
}

static void finish(meet_table *table, meet *m)
{
    m->is_over = true;
    m->status  = is_supported(m) ? PEN_OK : PEN_UNSUPPORTED;
    if (m->status == PEN_OK && m->op >= 0) reduce(m, table->n_ranks);
    if (m->generation > table->newest_over) table->newest_over = m->generation;

    free(m->has_come);
    m->has_come     = NULL;
    uint8_t *result = realloc(m->data, m->size ? m->size : 1); /* drops the inputs */
    if (result) m->data = result;
}

void meet_give_up(meet_table *table, meet *m, pen_status status)
{
    m->is_over = true;
    m->status  = status;
    if (m->generation > table->newest_over) table->newest_over = m->generation;
    free(m->has_come);
    m->has_come = NULL;
}

/* ---- arriving -------------------------------------------------------------------------------- */
static void meet_free(meet *m)
{
    free(m->has_come);
    free(m->data);
    *m = (meet){0};
}

void meet_fini(meet_table *table)
{
    for (int i = 0; i < MEET_SLOTS; i++) meet_free(&table->slot[i]);
}

void meet_name(const meet *m, char *text, size_t size)
{
    const char *quote = m->label[0] ? "'" : "";
    snprintf(text, size, "%s%s%s%s%s (call %" PRIu64 ")", m->op < 0 ? "barrier" : "all_reduce",
             *quote ? " " : "", quote, m->label, quote, m->generation);
}

static bool is_well_formed(const wire_control *c)
{
    if (c->u.meet.op < 0) return c->u.meet.data_size == 0;
    const size_t element = plan_dtype_bytes((pen_dtype)c->u.meet.dtype);
    if (!element || c->u.meet.count > MEET_BYTES_MAX) return false;
    return c->u.meet.data_size == c->u.meet.count * element;
}

static pen_status check(const wire_control *c, int32_t rank, pen_error *why)
{
    char count[SENTENCE_COUNT_BYTES];
    if (c->u.meet.data_size > MEET_BYTES_MAX || c->u.meet.count > MEET_BYTES_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "all_reduce (call %" PRIu64
                       "): rank %d has %s elements '%s'; at most %d bytes "
                       "go through the scheduler",
                       c->u.meet.generation, (int)rank, sentence_count(count, c->u.meet.count),
                       c->u.meet.label ? c->u.meet.label : "", MEET_BYTES_MAX);
    if (is_well_formed(c)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "call %" PRIu64 ": rank %d sent %zu bytes for %s elements of type %d",
                   c->u.meet.generation, (int)rank, c->u.meet.data_size,
                   sentence_count(count, c->u.meet.count), (int)c->u.meet.dtype);
}

static pen_status begin(meet_table *table, meet *m, int32_t rank, const wire_control *c,
                        uint64_t now_ms)
{
    meet_free(m);
    m->size     = c->u.meet.data_size;
    m->has_come = calloc(table->n_ranks, sizeof *m->has_come);
    m->data     = malloc(table->n_ranks * m->size + 1);
    if (!m->has_come || !m->data) {
        meet_free(m);
        return PEN_NO_MEMORY;
    }
    m->is_used    = true;
    m->generation = c->u.meet.generation;
    m->since_ms   = now_ms;
    m->op         = c->u.meet.op;
    m->dtype      = c->u.meet.dtype;
    m->count      = c->u.meet.count;
    m->first_rank = rank;
    snprintf(m->label, sizeof m->label, "%s", c->u.meet.label ? c->u.meet.label : "");
    return PEN_OK;
}

/* What one rank brought: "1,000 f32 SUM 'loss'", or "a barrier 'epoch end'" beside a reduction. */
static void add_what(sentence *text, int32_t op, int32_t dtype, uint64_t count, const char *label)
{
    char digits[SENTENCE_COUNT_BYTES];
    if (op < 0)
        sentence_add(text, "a barrier");
    else
        sentence_add(text, "%s %s %s", sentence_count(digits, count),
                     plan_dtype_name((pen_dtype)dtype), op_name(op));
    if (label && label[0]) sentence_add(text, " '%.*s'", MEET_LABEL_BYTES - 1, label);
}

static pen_status compare(const meet *m, int32_t rank, const wire_control *c, pen_error *why)
{
    const bool is_barrier = m->op < 0 && c->u.meet.op < 0;
    if (is_barrier) return PEN_OK;
    if (m->op == c->u.meet.op && m->dtype == c->u.meet.dtype && m->count == c->u.meet.count)
        return PEN_OK;

    sentence now = {0}, first = {0}, text = {0};
    add_what(&now, c->u.meet.op, c->u.meet.dtype, c->u.meet.count, c->u.meet.label);
    add_what(&first, m->op, m->dtype, m->count, m->label);
    const bool is_higher = rank > m->first_rank; /* the same sentence whoever came first */
    const bool mixed     = m->op < 0 || c->u.meet.op < 0;
    sentence_add(&text, "%scall %" PRIu64 "%s differs: rank %d has %s, rank %d has %s",
                 mixed ? "" : "all_reduce (", m->generation, mixed ? "" : ")",
                 (int)(is_higher ? rank : m->first_rank), is_higher ? now.text : first.text,
                 (int)(is_higher ? m->first_rank : rank), is_higher ? first.text : now.text);
    why_set(why, PEN_MISMATCH, "%s", text.text);
    why_culprit(why, PEN_WORKER, is_higher ? rank : m->first_rank, -1,
                c->u.meet.label ? c->u.meet.label : "");
    return PEN_MISMATCH;
}

static bool is_outside(const meet_table *table, uint64_t generation)
{
    return generation > table->newest_over + MEET_WINDOW ||
           generation + MEET_WINDOW <= table->newest_over;
}

meet_outcome meet_arrive(meet_table *table, int32_t rank, const wire_control *message,
                         uint64_t now_ms, meet **m, pen_error *why)
{
    const uint64_t generation = message->u.meet.generation;
    meet *slot                = &table->slot[generation % MEET_SLOTS];
    const bool is_known       = slot->is_used && slot->generation == generation;
    if (!is_known && is_outside(table, generation)) return MEET_IGNORED;
    *m = slot;
    if (is_known && slot->is_over) return MEET_REPEATED;
    if (is_known && slot->has_come[rank]) return MEET_KNOWN;

    if (check(message, rank, why) != PEN_OK) return MEET_FAILED;
    if (!is_known && begin(table, slot, rank, message, now_ms) != PEN_OK) {
        why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for a meeting of %u ranks",
                table->n_ranks);
        return MEET_FAILED;
    }
    if (compare(slot, rank, message, why) != PEN_OK) return MEET_FAILED;

    slot->has_come[rank] = true;
    if (slot->size)
        memcpy(slot->data + (size_t)rank * slot->size, message->u.meet.data, slot->size);
    if (++slot->n_come < table->n_ranks) return MEET_WAIT;
    finish(table, slot);
    return MEET_COMPLETE;
}
