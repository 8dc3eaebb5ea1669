/* shard_table.c - a part of a table by key: its rows change and are served as the core says, like a chunk's values.
 *
 * Contributions to a round stay where they arrived, in the order of their turns.  When the last one is there, they
 * are merged: a key's gradients are added in that order, in float32, as those of a tensor are.  The mean is over the
 * weights of all ranks, also those that did not push the key.  A question for values that has to wait keeps its keys.
 */
#include "server/shard/shard_state.h"

#include "common/compute/simd/simd.h"
#include "common/containers/arrays.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTIONS_MAX = 2 * CORE_WAITING_PER_RANK_MAX, NO_TURN = UINT32_MAX };

typedef struct { /* one rank's push to the open round */
    int32_t rank;
    double weight;
    uint32_t turn; /* NO_TURN: it waits for its turn */
    rows rows;
    buf *holder;
    uint32_t next;        /* of the merge: its next row, */
    const uint8_t *value; /* and the values of that */
} contribution;

typedef struct {
    int32_t rank;
    uint64_t seq, age;
    void *keys; /* OWNED: as a question */
    size_t size;
} question;

struct shard_table {
    row_store *rows;
    pen_dtype dtype, push_dtype;
    uint32_t dim;
    contribution *staged;
    uint32_t n_staged, n_turns;
    size_t staged_capacity;
    question *asked;
    uint32_t n_asked;
    size_t asked_capacity;
    uint64_t ages;
};

/* ---- life ------------------------------------------------------------------------------------ */
pen_status shard_table_new(shard *s, shard_chunk *k, pen_error *why)
{
    const wire_tensor *t  = &s->setup.model->tensor[k->tensor];
    row_store_rules rules = {.dim   = plan_table_dim(t),
                             .optim = s->group[k->group].optim,
                             .hyper = s->group[k->group].hyper,
                             .seed  = init_key(s->seed, t->name)};
    if (init_parse(t->init != NULL && t->init[0] != '\0' ? t->init : "zero", &rules.init, why) !=
        PEN_OK)
        return why->status;
    k->table = calloc(1, sizeof *k->table);
    if (k->table != NULL) {
        k->table->rows       = row_store_create(&rules);
        k->table->dim        = rules.dim;
        k->table->dtype      = k->dtype;
        k->table->push_dtype = k->push_dtype;
    }
    if (k->table != NULL && k->table->rows != NULL) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "no memory for the rows of '%s'", t->name);
}

void shard_table_drop_staged(shard_chunk *k)
{
    shard_table *t = k->table;
    for (uint32_t i = 0; i < t->n_staged; i++) buf_release(t->staged[i].holder);
    t->n_staged = t->n_turns = 0;
}

void shard_table_free(shard_chunk *k)
{
    if (k->table == NULL) return;
    shard_table_drop_staged(k);
    for (uint32_t i = 0; i < k->table->n_asked; i++) free(k->table->asked[i].keys);
    row_store_destroy(k->table->rows);
    free(k->table->staged);
    free(k->table->asked);
    free(k->table);
    k->table = NULL;
}

row_store *shard_table_rows(const shard_chunk *k)
{
    return k->table->rows;
}

/* ---- contributions --------------------------------------------------------------------------- */
static contribution *find_staged(shard_table *t, int32_t rank)
{
    for (uint32_t i = 0; i < t->n_staged; i++)
        if (t->staged[i].rank == rank) return &t->staged[i];
    return NULL;
}

static contribution *stage(shard_chunk *k, int32_t rank, const shard_arrival *in)
{
    shard_table *t   = k->table;
    const void *held = NULL;
    pen_error why;
    if (!VEC_ROOM(t->staged, t->staged_capacity, t->n_staged + 1)) return NULL;
    buf *holder        = buf_hold_part(in->data, in->size, in->payload, &held);
    contribution *c    = &t->staged[t->n_staged];
    const size_t width = plan_dtype_bytes(t->push_dtype);
    if (holder == NULL) return NULL;
    *c = (contribution){
        .rank = rank, .weight = in->d->inputs.weight, .turn = NO_TURN, .holder = holder};
    (void)rows_read(held, in->size, ROWS_PUSHED, t->dim, width, &c->rows, &why);
    t->n_staged++;
    return c;
}

void shard_table_stage(shard *s, shard_chunk *k, const shard_core_action *a,
                       const shard_arrival *in)
{
    const bool is_here = a->rank == in->d->rank && in->rows != NULL;
    contribution *c    = find_staged(k->table, a->rank);
    if (c == NULL && is_here) c = stage(k, a->rank, in);
    if (c == NULL)
        shard_no_memory(s);
    else if (a->verb == CORE_FOLD)
        c->turn = k->table->n_turns++;
}

/* ---- the merge ------------------------------------------------------------------------------- */
static int by_turn(const void *a, const void *b)
{
    const uint32_t x = ((const contribution *)a)->turn, y = ((const contribution *)b)->turn;
    return x < y ? -1 : x > y;
}

static void rewind_all(shard_table *t)
{
    for (uint32_t i = 0; i < t->n_staged; i++) {
        t->staged[i].next  = t->staged[i].weight > 0 ? 0 : t->staged[i].rows.n;
        t->staged[i].value = t->staged[i].rows.value;
    }
}

/* The least key that is left; false: none. */
static bool least_key(const shard_table *t, uint64_t *key)
{
    bool found = false;
    for (uint32_t i = 0; i < t->n_staged; i++) {
        const contribution *c = &t->staged[i];
        if (c->next == c->rows.n) continue;
        const uint64_t mine = rows_key(&c->rows, c->next);
        if (!found || mine < *key) *key = mine;
        found = true;
    }
    return found;
}

static bool is_at(const contribution *c, uint64_t key)
{
    return c->next < c->rows.n && rows_key(&c->rows, c->next) == key;
}

/* Ranks give a key different lengths: *a and *b. */
static bool lengths_differ(const shard_table *t, uint64_t key, const contribution **a,
                           const contribution **b)
{
    *a = NULL;
    for (uint32_t i = 0; i < t->n_staged; i++) {
        const contribution *c = &t->staged[i];
        if (!is_at(c, key)) continue;
        if (*a == NULL) *a = c;
        *b = c;
        if (rows_length(&c->rows, c->next, t->dim) != rows_length(&(*a)->rows, (*a)->next, t->dim))
            return true;
    }
    return false;
}

/* Adds the rows of this key to sum[length]; NULL: only counts. */
static uint32_t take_key(shard_table *t, uint64_t key, float *sum)
{
    uint32_t length    = 0;
    bool is_first      = true;
    const size_t width = plan_dtype_bytes(t->push_dtype);
    for (uint32_t i = 0; i < t->n_staged; i++) {
        contribution *c = &t->staged[i];
        if (!is_at(c, key)) continue;
        length = rows_length(&c->rows, c->next, t->dim);
        if (sum != NULL && is_first)
            (void)simd()->fold_set(sum, c->value, t->push_dtype, (float)c->weight, length);
        else if (sum != NULL)
            (void)simd()->fold_add(sum, sum, c->value, t->push_dtype, (float)c->weight, length);
        is_first = false;
        c->value += length * width;
        c->next++;
    }
    return length;
}

static bool count_rows(shard *s, const shard_chunk *k, uint32_t *n, uint64_t *elements)
{
    shard_table *t = k->table;
    const contribution *a, *b;
    uint64_t key = 0;
    rewind_all(t);
    for (*n = 0, *elements = 0; least_key(t, &key); ++*n) {
        if (t->dim == 0 && lengths_differ(t, key, &a, &b)) {
            pen_error why;
            why_set(&why, PEN_MISMATCH,
                    "'%s': rank %d pushes key %" PRIu64 " with %u values and rank %d with %u; all "
                    "ranks must give the same",
                    shard_tensor_name(s, k), b->rank, key, rows_length(&b->rows, b->next, 0),
                    a->rank, rows_length(&a->rows, a->next, 0));
            why_culprit(&why, PEN_WORKER, b->rank, -1, shard_tensor_name(s, k));
            s->outside.report(s->outside.user, &why);
            return false;
        }
        *elements += take_key(t, key, NULL);
    }
    return true;
}

/* The sum of all contributions, in float32, as one push.  NULL: no memory, no room in a message, or ranks disagree. */
static buf *merge(shard *s, shard_chunk *k)
{
    shard_table *t = k->table;
    uint32_t n;
    uint64_t elements, key = 0;
    qsort(t->staged, t->n_staged, sizeof *t->staged, by_turn);
    if (!count_rows(s, k, &n, &elements)) return NULL;
    const size_t size = rows_bytes(ROWS_PUSHED, n, elements, t->dim, sizeof(float));
    if (size ==
        SIZE_MAX) { /* each push fits a message; their union may not, nor 16-bit values as float32 */
        pen_error why;
        why_set(&why, PEN_UNSUPPORTED,
                "'%s': the sum of one round of a part has %u keys and %" PRIu64
                " values, more than a message takes (64 MiB); push fewer keys a round, or set a "
                "higher table_parts",
                shard_tensor_name(s, k), n, elements);
        shard_fail(s, &why);
        return NULL;
    }
    buf *sum = buf_new(size);
    if (sum == NULL) {
        shard_no_memory(s);
        return NULL;
    }
    memset(sum->data, 0, size);
    const rows r  = rows_lay(sum->data, ROWS_PUSHED, n, (uint32_t)elements, t->dim);
    uint8_t *keys = (uint8_t *)(uintptr_t)r.key, *lengths = (uint8_t *)(uintptr_t)r.length;
    float *value = (float *)(uintptr_t)r.value;
    rewind_all(t);
    for (uint32_t i = 0; least_key(t, &key); i++) {
        const uint32_t length = take_key(t, key, value);
        memcpy(keys + i * sizeof key, &key, sizeof key);
        if (t->dim == 0) memcpy(lengths + i * sizeof length, &length, sizeof length);
        value += length;
    }
    return sum;
}

/* ---- updates --------------------------------------------------------------------------------- */
static void apply(shard *s, shard_chunk *k, const rows *r, pen_dtype dtype,
                  const wire_inputs *inputs, double gscale)
{
    shard_table *t        = k->table;
    const bool is_watched = s->n_copies > 0 || s->role != SHARD_PRIMARY;
    const uint64_t before = row_store_bytes(t->rows);
    pen_error why;
    k->rows_crc = 0;
    if (row_store_update(t->rows, r, dtype, inputs->rate[k->group], gscale,
                         is_watched ? &k->rows_crc : NULL, &why) != PEN_OK)
        shard_no_memory(s);
    stat_add(s->options.stats, STAT_PARAM_BYTES, row_store_bytes(t->rows) - before);
    k->version++;
}

static void update_with_sum(shard *s, shard_chunk *k, const rows *r, double weight_sum,
                            const wire_inputs *inputs)
{
    const double divisor = weight_sum * inputs->loss_scale;
    if (divisor > 0) apply(s, k, r, PEN_F32, inputs, 1 / divisor);
}

static void update_with_push(shard *s, shard_chunk *k, const rows *r, const wire_inputs *inputs)
{
    if (inputs->weight > 0)
        apply(s, k, r, k->table->push_dtype, inputs, inputs->weight / inputs->loss_scale);
}

void shard_table_update(shard *s, shard_chunk *k, const shard_core_action *a,
                        const shard_arrival *in)
{
    if (a->rank >= 0) {
        shard_log_apply(s, k, a->rank, a->seq, &in->d->inputs, in->data, in->size, in->payload);
        update_with_push(s, k, in->rows, &in->d->inputs);
        return;
    }
    buf *sum      = merge(s, k);
    double weight = 0;
    rows r;
    pen_error why;
    for (uint32_t i = 0; i < k->table->n_staged; i++) weight += k->table->staged[i].weight;
    shard_table_drop_staged(k);
    if (sum == NULL) return;
    (void)rows_read(sum->data, sum->size, ROWS_PUSHED, k->table->dim, sizeof(float), &r, &why);
    shard_log_rows(s, k, a->seq, &in->d->inputs, weight, sum);
    update_with_sum(s, k, &r, weight, &in->d->inputs);
    buf_release(sum);
}

bool shard_table_follow(shard *s, shard_chunk *k, const wire_entry *e, const void *data)
{
    rows r;
    pen_error why;
    const bool is_sum     = e->what == WIRE_ENTRY_UPDATE;
    const pen_dtype dtype = is_sum ? PEN_F32 : k->table->push_dtype;
    if (rows_read(data, e->bytes, ROWS_PUSHED, k->table->dim, plan_dtype_bytes(dtype), &r, &why) !=
            PEN_OK ||
        row_store_check(k->table->rows, &r, &why) != PEN_OK)
        return false;
    if (is_sum)
        update_with_sum(s, k, &r, e->weight_sum, &e->inputs);
    else
        update_with_push(s, k, &r, &e->inputs);
    return true;
}

/* ---- questions ------------------------------------------------------------------------------- */
static void forget(shard_table *t, question *q)
{
    free(q->keys);
    *q = t->asked[--t->n_asked];
}

/* Keeps the keys of an answer that waits.  The core bounds those of one rank; older ones were forgotten there. */
void shard_table_ask(shard *s, shard_chunk *k, const shard_arrival *in)
{
    shard_table *t     = k->table;
    const rows *r      = in->rows;
    const int32_t rank = in->d->rank;
    const uint64_t seq = in->seq;
    question *oldest   = NULL;
    uint32_t n         = 0;
    for (uint32_t i = 0; i < t->n_asked; i++) {
        question *q = &t->asked[i];
        if (q->rank != rank) continue;
        if (q->seq ==
            seq) { /* asked again, or by a later incarnation, which may ask for other keys */
            forget(t, q);
            i--;
            continue;
        }
        if (oldest == NULL || q->age < oldest->age) oldest = q;
        n++;
    }
    if (n == QUESTIONS_MAX) forget(t, oldest);
    const size_t size = rows_bytes(ROWS_ASKED, r->n, 0, t->dim, 0);
    void *keys        = malloc(size);
    if (keys == NULL || !VEC_ROOM(t->asked, t->asked_capacity, t->n_asked + 1)) {
        free(keys); /* it asks again */
        shard_no_memory(s);
        return;
    }
    const rows copy = rows_lay(keys, ROWS_ASKED, r->n, 0, t->dim);
    memcpy((uint8_t *)(uintptr_t)copy.key, r->key, (size_t)r->n * sizeof(uint64_t));
    t->asked[t->n_asked++] = (question){rank, seq, t->ages++, keys, size};
}

static void answer(shard *s, shard_chunk *k, const shard_core_action *a, const rows *asked)
{
    shard_table *t          = k->table;
    const uint64_t elements = row_store_elements(t->rows, asked);
    const size_t size =
        rows_bytes(ROWS_ANSWERED, asked->n, elements, t->dim, plan_dtype_bytes(t->dtype));
    uint8_t *at = size != SIZE_MAX ? shard_reply_rows(s, a, size) : NULL;
    if (at == NULL) return;               /* no memory: it asks again */
    if (t->dim == 0) memset(at, 0, size); /* nothing writes what pads the lengths */
    const rows r = rows_lay(at, ROWS_ANSWERED, asked->n, (uint32_t)elements, t->dim);
    row_store_read(t->rows, asked, &r, t->dtype);
}

void shard_table_serve(shard *s, shard_chunk *k, const shard_core_action *a,
                       const shard_arrival *in)
{
    shard_table *t = k->table;
    if (in->rows != NULL && in->d->rank == a->rank && in->seq == a->seq) {
        answer(s, k, a, in->rows);
        return;
    }
    for (uint32_t i = 0; i < t->n_asked; i++) {
        question *q = &t->asked[i];
        rows r;
        pen_error why;
        if (q->rank != a->rank || q->seq != a->seq) continue;
        if (rows_read(q->keys, q->size, ROWS_ASKED, t->dim, 0, &r, &why) == PEN_OK)
            answer(s, k, a, &r);
        forget(t, q);
        return;
    }
}

pen_status shard_table_read(const shard_chunk *k, const shard_arrival *in, rows *r, pen_error *why)
{
    const shard_table *t = k->table;
    const bool pushes    = in->d->kind == WIRE_PUSH;
    pen_status status    = rows_read(in->data, in->size, pushes ? ROWS_PUSHED : ROWS_ASKED, t->dim,
                                     plan_dtype_bytes(t->push_dtype), r, why);
    if (status == PEN_OK && pushes) status = row_store_check(t->rows, r, why);
    return status;
}
