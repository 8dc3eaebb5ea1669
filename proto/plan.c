/* plan.c - partitions a model into chunks and deals them out. */
#include "proto/plan.h"

#include "common/base/why.h"
#include "common/compute/optim/optim.h"
#include "proto/rows.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNKS_AIMED_AT    = 64, /* of a small model: enough to balance a few shards */
    CHUNK_ELEMENTS_MAX = 1 << 20
};
_Static_assert(PLAN_ELEMENTS_MAX == (uint64_t)PLAN_CHUNKS_MAX * CHUNK_ELEMENTS_MAX,
               "both bounds allow the same largest tensor");

/* ---- dtypes ---------------------------------------------------------------------------------- */
/* clang-format off */
static const struct { const char *name; size_t bytes; } dtypes[] = {
    [PEN_DTYPE_DEFAULT] = {"default", 0},
    [PEN_F32]    = {"f32", 4},    [PEN_F16] = {"f16", 2}, [PEN_BF16] = {"bf16", 2},
    [PEN_F64]    = {"f64", 8},    [PEN_I8]  = {"i8", 1},  [PEN_U8]   = {"u8", 1},
    [PEN_I32]    = {"i32", 4},    [PEN_U32] = {"u32", 4}, [PEN_I64]  = {"i64", 8},
    [PEN_U64]    = {"u64", 8},
    [PEN_F8E4M3] = {"f8e4m3", 1}, [PEN_F8E5M2] = {"f8e5m2", 1},
};
/* clang-format on */

static bool is_dtype(pen_dtype dtype)
{
    return (int)dtype >= 0 && (size_t)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t plan_dtype_bytes(pen_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

const char *plan_dtype_name(pen_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

pen_dtype plan_push_dtype(const wire_group *group, const wire_tensor *t)
{
    const pen_dtype own = t->grad_dtype != PEN_DTYPE_DEFAULT ? t->grad_dtype : t->dtype;
    const char *wire    = group->wire != NULL ? group->wire : "";
    if (plan_has_handler(t)) return own;
    if (*wire == '\0' || strcmp(wire, "raw") == 0) return own;
    if (strcmp(wire, "bf16") == 0) return own == PEN_F32 ? PEN_BF16 : own;
    if (strcmp(wire, "f16") == 0) return own == PEN_F32 ? PEN_F16 : own;
    return PEN_DTYPE_DEFAULT;
}

bool plan_sums_are_wide(const wire_model *m)
{
    for (uint32_t i = 0; i < m->n_settings; i++)
        if (strcmp(m->setting[i].key, "deterministic") == 0)
            return strcmp(m->setting[i].value, "node") == 0;
    return false;
}

bool plan_is_table(const wire_tensor *t)
{
    return (t->flags & WIRE_TABLE) != 0;
}

bool plan_has_handler(const wire_tensor *t)
{
    return plan_is_table(t) && t->handler != NULL && t->handler[0] != '\0';
}

uint32_t plan_table_dim(const wire_tensor *t)
{
    return t->ndim > 1 ? (uint32_t)t->shape[1] : 0;
}

static bool is_shape_of_table(const wire_tensor *t)
{
    return (t->ndim == 1 || t->ndim == 2) && t->shape[0] >= 1 && t->shape[0] <= WIRE_PARTS_MAX &&
           (t->ndim == 1 || (t->shape[1] >= 1 && t->shape[1] <= ROWS_LENGTH_MAX)) &&
           (t->flags & PEN_FROZEN) != 0;
}

uint64_t plan_tensor_elements(const wire_tensor *t)
{
    if (plan_is_table(t)) return is_shape_of_table(t) ? (uint64_t)t->shape[0] : 0;
    if (t->ndim < 0 || t->ndim > 8) return 0;
    uint64_t elements = 1;
    for (int32_t d = 0; d < t->ndim; d++) {
        if (t->shape[d] < 1 || (uint64_t)t->shape[d] > PLAN_ELEMENTS_MAX / elements) return 0;
        elements *= (uint64_t)t->shape[d];
    }
    return elements;
}

/* ---- checks ------------------------------------------------------------------------- */
static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static bool is_trained(const wire_tensor *t)
{
    return (t->flags & PEN_FROZEN) == 0;
}

/* The rule of a group by the first word of its optim string; *ops NULL: the default rule. */
static bool find_rule(const wire_group *group, const optim_ops **ops)
{
    *ops         = NULL;
    size_t start = group->optim != NULL ? strspn(group->optim, " \t") : 0;
    size_t n     = group->optim != NULL ? strcspn(group->optim + start, " \t") : 0;
    if (n == 0) return true;

    char word[64];
    if (n >= sizeof word) return false;
    memcpy(word, group->optim + start, n);
    word[n] = '\0';
    *ops    = optim_find(word);
    return *ops != NULL;
}

bool plan_group_averages(const wire_group *group)
{
    const char *sync = group->sync != NULL ? group->sync : "";
    const size_t n   = strcspn(sync, " ");
    return *sync == '\0' || (n == 3 && memcmp(sync, "bsp", n) == 0);
}

static bool is_decided(const wire_model *model, const wire_tensor *t)
{
    return is_trained(t) && (model->n_groups == 0 || plan_group_averages(&model->group[t->group]));
}

static bool needs_whole(const wire_model *model, const wire_tensor *t)
{
    const optim_ops *ops;
    return is_trained(t) && t->group < model->n_groups &&
           find_rule(&model->group[t->group], &ops) && ops != NULL && ops->whole_tensor;
}

static pen_status check_tensor(const wire_model *model, const wire_tensor *t, pen_error *why)
{
    if (plan_dtype_bytes(t->dtype) == 0)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s' has no element type that servers can store",
                       t->name);
    if (plan_tensor_elements(t) == 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "invalid shape of '%s': expected at most 8 dimensions, each at least 1, and "
                       "at most %" PRIu64 " elements",
                       t->name, PLAN_ELEMENTS_MAX);
    if (t->group >= model->n_groups && (model->n_groups > 0 || t->group > 0))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "invalid parameter group %u of '%s': the model has %u", t->group, t->name,
                       model->n_groups);
    return PEN_OK;
}

static pen_status check_model(const wire_model *model, uint64_t *elements, pen_error *why)
{
    if (model->n_tensors == 0)
        return why_set(why, PEN_INVALID_ARGUMENT, "nothing to train: no tensor was registered");
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const optim_ops *ops;
        if (!find_rule(&model->group[g], &ops))
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "parameter group '%s' has unknown update rule '%.64s'",
                           model->group[g].name, model->group[g].optim);
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        pen_status status = check_tensor(model, &model->tensor[t], why);
        if (status != PEN_OK) return status;
        if (plan_is_table(&model->tensor[t])) continue;
        *elements += plan_tensor_elements(&model->tensor[t]); /* two of at most 2^40 */
        if (*elements > PLAN_ELEMENTS_MAX)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "the model has more than %" PRIu64 " elements; '%s' exceeds that",
                           PLAN_ELEMENTS_MAX, model->tensor[t].name);
    }
    return PEN_OK;
}

static uint64_t chunk_elements(uint64_t elements)
{
    uint64_t wanted = round_up(elements / CHUNKS_AIMED_AT, PLAN_BLOCK);
    if (wanted < PLAN_BLOCK) return PLAN_BLOCK;
    return wanted > CHUNK_ELEMENTS_MAX ? CHUNK_ELEMENTS_MAX : wanted;
}

/* ---- chunks --------------------------------------------------------------------------------- */
static pen_status count_chunks(plan *p, const wire_model *model, pen_error *why)
{
    uint64_t n = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        p->first_chunk[t]       = (uint32_t)n;
        const uint64_t elements = plan_tensor_elements(&model->tensor[t]);
        n += plan_is_table(&model->tensor[t])
                 ? elements
                 : round_up(elements, p->chunk_elements) / p->chunk_elements;
        if (n > PLAN_CHUNKS_MAX)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "the model has more than %d chunks; register fewer, larger tensors",
                           PLAN_CHUNKS_MAX);
    }
    p->first_chunk[model->n_tensors] = p->n_chunks = (uint32_t)n;
    return PEN_OK;
}

static void cut_tensor(plan *p, uint32_t tensor, const wire_tensor *t, bool decided)
{
    const uint64_t most = plan_is_table(t) ? 1 : p->chunk_elements;
    uint64_t left = plan_tensor_elements(t), start = 0;
    for (uint32_t c = p->first_chunk[tensor]; c < p->first_chunk[tensor + 1]; c++) {
        uint64_t count = left < most ? left : most;
        p->chunk[c]    = (plan_chunk){
               .tensor = tensor, .start = start, .count = count, .trained = is_trained(t)};
        if (decided) p->chunk[c].blocks = (uint32_t)(round_up(count, PLAN_BLOCK) / PLAN_BLOCK);
        start += count;
        left -= count;
    }
}

/* ---- partitions --------------------------------------------------------------------------------- */
/* A unit of dealing: consecutive chunks, or a partition. */
typedef struct {
    uint32_t first, n;
    uint64_t bytes;
} card;

static int by_size(const void *a, const void *b)
{
    const card *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Deals cards, largest first, each to the hand with the least bytes: hand_of[card.first]. */
static void deal(card *cards, uint32_t n, uint64_t *hand_bytes, uint32_t n_hands, uint32_t *hand_of)
{
    qsort(cards, n, sizeof *cards, by_size);
    memset(hand_bytes, 0, n_hands * sizeof *hand_bytes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t least = 0;
        for (uint32_t h = 1; h < n_hands; h++)
            if (hand_bytes[h] < hand_bytes[least]) least = h;
        hand_bytes[least] += cards[i].bytes;
        hand_of[cards[i].first] = least;
    }
}

/* How many rows a part will have is not known; equal weights spread the parts. */
static uint64_t rows_of_card(const wire_tensor *table)
{
    const uint32_t dim = plan_table_dim(table);
    return PLAN_BLOCK * (uint64_t)(dim > 0 ? dim : 1);
}

static uint32_t make_cards(const plan *p, const wire_model *model, card *cards)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const wire_tensor *tensor = &model->tensor[t];
        uint32_t first = p->first_chunk[t], end = p->first_chunk[t + 1];
        uint32_t together = needs_whole(model, tensor) ? end - first : 1;
        for (uint32_t c = first; c < end; c += together) {
            cards[n] = (card){.first = c, .n = together};
            for (uint32_t i = c; i < c + together; i++) cards[n].bytes += p->chunk[i].count;
            if (plan_is_table(tensor)) cards[n].bytes *= rows_of_card(tensor);
            cards[n++].bytes *= plan_dtype_bytes(tensor->dtype);
        }
    }
    return n;
}

static void count_partitions(plan *p, const card *cards, uint32_t n_cards,
                             const uint32_t *partition_of)
{
    for (uint32_t i = 0; i < n_cards; i++) {
        plan_partition *part = &p->partition[partition_of[cards[i].first]];
        part->bytes += cards[i].bytes;
        for (uint32_t c = cards[i].first; c < cards[i].first + cards[i].n; c++) {
            p->chunk[c].partition = partition_of[cards[i].first];
            part->n_chunks++;
        }
    }
}

/* In chunk order, so that the chunks of a partition ascend. */
static void fill_partitions(plan *p, uint32_t *numbers)
{
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        p->partition[i].chunk = numbers;
        numbers += p->partition[i].n_chunks;
        p->partition[i].n_chunks = 0;
    }
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        plan_chunk *chunk             = &p->chunk[c];
        plan_partition *part          = &p->partition[chunk->partition];
        chunk->index_in_partition     = part->n_chunks;
        chunk->first_block            = part->blocks;
        part->chunk[part->n_chunks++] = c;
        part->elements += chunk->count;
        part->blocks += chunk->blocks;
        part->n_trained += chunk->trained;
        part->n_decided += chunk->blocks > 0;
    }
}

static pen_status make_partitions(plan *p, const wire_model *model, pen_error *why)
{
    card *cards            = calloc(p->n_chunks, sizeof *cards);
    uint32_t *partition_of = calloc(p->n_chunks, sizeof *partition_of);
    uint32_t *numbers      = calloc(p->n_chunks, sizeof *numbers);
    p->partition           = calloc(PLAN_PARTITIONS_MAX, sizeof *p->partition);
    pen_status status      = PEN_NO_MEMORY;
    if (cards != NULL && partition_of != NULL && numbers != NULL && p->partition != NULL) {
        uint64_t bytes[PLAN_PARTITIONS_MAX];
        uint32_t n      = make_cards(p, model, cards);
        p->n_partitions = n < PLAN_PARTITIONS_MAX ? n : PLAN_PARTITIONS_MAX;
        deal(cards, n, bytes, p->n_partitions, partition_of);
        count_partitions(p, cards, n, partition_of);
        fill_partitions(p, numbers);
        numbers = NULL; /* the partitions' now */
        status  = PEN_OK;
    }
    free(cards);
    free(partition_of);
    free(numbers);
    return status == PEN_OK ? PEN_OK
                            : why_set(why, status, "no memory to place %u chunks", p->n_chunks);
}

static pen_status split(plan *p, const wire_model *model, pen_error *why)
{
    uint64_t elements = 0;
    pen_status status = check_model(model, &elements, why);
    if (status != PEN_OK) return status;
    p->n_tensors      = model->n_tensors;
    p->chunk_elements = chunk_elements(elements);
    p->first_chunk    = calloc((size_t)model->n_tensors + 1, sizeof *p->first_chunk);
    if (p->first_chunk == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to partition %u tensors", model->n_tensors);
    status = count_chunks(p, model, why);
    if (status != PEN_OK) return status;
    p->chunk = calloc(p->n_chunks, sizeof *p->chunk);
    if (p->chunk == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to partition %u chunks", p->n_chunks);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const wire_tensor *tensor = &model->tensor[t];
        cut_tensor(p, t, tensor, is_decided(model, tensor));
    }
    return make_partitions(p, model, why);
}

pen_status plan_create(const wire_model *model, plan **p, pen_error *why)
{
    plan *made = calloc(1, sizeof *made);
    if (made == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to partition the model");
    pen_status status = split(made, model, why);
    if (status != PEN_OK) {
        plan_destroy(made);
        return status;
    }
    *p = made;
    return PEN_OK;
}

void plan_destroy(plan *p)
{
    if (p == NULL) return;
    if (p->partition != NULL) free(p->partition[0].chunk); /* all partitions' lists are one block */
    free(p->partition);
    free(p->chunk);
    free(p->first_chunk);
    free(p);
}

void plan_place(const plan *p, uint32_t n_shards, uint32_t *shard)
{
    assert(n_shards > 0);
    card cards[PLAN_PARTITIONS_MAX];
    uint64_t bytes[PLAN_PARTITIONS_MAX];
    for (uint32_t i = 0; i < p->n_partitions; i++)
        cards[i] = (card){.first = i, .n = 1, .bytes = p->partition[i].bytes};
    /* With more hands than cards, only the first hands get any. */
    uint32_t hands = n_shards < PLAN_PARTITIONS_MAX ? n_shards : PLAN_PARTITIONS_MAX;
    deal(cards, p->n_partitions, bytes, hands, shard);
}
