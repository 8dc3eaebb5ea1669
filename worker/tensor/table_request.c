/* table_request.c - checks, deals, sorts and writes the keys of a call, and puts the answers back. */
#include "worker/tensor/table_request.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/containers/arrays.h"
#include "proto/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 48 }; /* keys that are sorted faster by insertion than by their bytes */

typedef struct { /* a key of the call */
    uint64_t key;
    uint32_t at; /* its position there */
} placed;

typedef struct {
    pen_table *table;
    const pen_kv *kv;
    bool pushes;
    placed *key;      /* [n] by part */
    placed *spare;    /* [n] while they are sorted */
    uint32_t *count;  /* [parts] keys; then different ones */
    uint32_t *begin;  /* [parts + 1] in key[] */
    uint64_t *value;  /* [n] first element of each in kv->in; NULL: dim each */
    uint8_t *part;    /* [n] */
    float *sum;       /* of a key that comes more than once */
    uint32_t longest; /* row */
    size_t size;      /* of all questions */
} sorting;

/* ---- arguments ------------------------------------------------------------------------------- */
static pen_status wrong(const pen_table *t, pen_error *why, const char *what)
{
    return why_set(why, PEN_INVALID_ARGUMENT, "'%s': %s", t->name, what);
}

static pen_status check_pull(const pen_table *t, const pen_kv *kv, uint64_t *count, pen_error *why)
{
    if (kv->out == NULL && kv->out_new == NULL)
        return wrong(t, why, "nowhere to put values: out and out_new are NULL");
    if (kv->out != NULL && kv->out_new != NULL)
        return wrong(t, why, "out and out_new are both set; use one");
    if (t->dim == 0 && kv->out_lens == NULL)
        return wrong(t, why, "dim is 0, so out_lens is needed: it says which values are whose");
    *count = (uint64_t)kv->n * t->dim;
    if (kv->out == NULL || kv->out_cap >= *count) return PEN_OK;
    return why_set(why, PEN_TOO_SMALL, "'%s': out has room for %zu elements, %" PRIu64 " will come",
                   t->name, kv->out_cap, *count);
}

static pen_status check_push(const pen_table *t, const pen_kv *kv, pen_error *why)
{
    if (kv->in == NULL && kv->n > 0) return wrong(t, why, "no values to push: in is NULL");
    if (t->dim == 0 && kv->in_lens == NULL && kv->n > 0)
        return wrong(t, why, "dim is 0, so in_lens is needed");
    for (size_t i = 0; kv->in_lens != NULL && i < kv->n; i++)
        if (kv->in_lens[i] < 1 || kv->in_lens[i] > ROWS_LENGTH_MAX ||
            (t->dim > 0 && kv->in_lens[i] != t->dim))
            return why_set(why, PEN_INVALID_ARGUMENT, "'%s': in_lens[%zu] is %u; expected %u to %u",
                           t->name, i, kv->in_lens[i], t->dim > 0 ? t->dim : 1,
                           t->dim > 0 ? t->dim : (uint32_t)ROWS_LENGTH_MAX);
    return PEN_OK;
}

static pen_status check(const pen_table *t, const pen_kv *kv, ps_client_verb verb, uint64_t *count,
                        pen_error *why)
{
    for (int i = 0; i < 4; i++)
        if (kv->reserved[i] != 0)
            return wrong(t, why, "pen_kv has garbage in reserved; initialise it with {0}");
    if (kv->reserved32 != 0)
        return wrong(t, why, "pen_kv has garbage in reserved32; initialise it with {0}");
    if (kv->keys == NULL && kv->n > 0) return wrong(t, why, "keys is NULL");
    if (kv->n > WIRE_PAYLOAD_BYTES_MAX / sizeof(uint64_t))
        return wrong(t, why, "too many keys for one call; split it");
    for (size_t i = 1; !t->sorts && i < kv->n; i++)
        if (kv->keys[i - 1] >= kv->keys[i])
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "'%s': keys[%zu] is %" PRIu64 " after %" PRIu64
                           "; sort them, each once, or make the table with PEN_KEYS_ANY",
                           t->name, i, kv->keys[i], kv->keys[i - 1]);
    if (verb != PS_PUSH && check_pull(t, kv, count, why) != PEN_OK) return why->status;
    return verb != PS_PULL ? check_push(t, kv, why) : PEN_OK;
}

/* ---- sorting --------------------------------------------------------------------------------- */
static uint32_t part_of(const pen_table *t, uint64_t key)
{
    if (t->place != NULL) return t->place(key, t->parts, t->user);
    return t->by_range ? rows_part_by_range(key, t->parts) : rows_part_by_hash(key, t->parts);
}

static pen_status deal(sorting *s, pen_error *why)
{
    const pen_table *t = s->table;
    uint32_t at[WIRE_PARTS_MAX];
    uint64_t next = 0;
    for (size_t i = 0; i < s->kv->n; i++) {
        const uint32_t part = part_of(t, s->kv->keys[i]);
        if (part >= t->parts)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "'%s': place() puts key %" PRIu64 " into part %u of %u", t->name,
                           s->kv->keys[i], part, t->parts);
        s->part[i] = (uint8_t)part;
        s->count[part]++;
        const uint32_t length = s->kv->in_lens != NULL ? s->kv->in_lens[i] : t->dim;
        if (length > s->longest) s->longest = length;
        if (s->value != NULL) s->value[i] = next;
        next += length;
    }
    for (uint32_t p = 0; p < t->parts; p++) {
        at[p]           = s->begin[p];
        s->begin[p + 1] = s->begin[p] + s->count[p];
    }
    for (size_t i = 0; i < s->kv->n; i++)
        s->key[at[s->part[i]]++] = (placed){s->kv->keys[i], (uint32_t)i};
    return PEN_OK;
}

static void insert(placed *key, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const placed moved = key[i];
        uint32_t to        = i;
        for (; to > 0 && key[to - 1].key > moved.key; to--) key[to] = key[to - 1];
        key[to] = moved;
    }
}

/* By each byte in which keys differ, the lowest first.  Equal keys stay in the order of the call. */
static void sort(placed *key, placed *spare, uint32_t n)
{
    uint64_t differing = 0;
    placed *from = key, *to = spare;
    if (n <= SHORT) {
        insert(key, n);
        return;
    }
    for (uint32_t i = 1; i < n; i++) differing |= key[i].key ^ key[0].key;
    for (int shift = 0; shift < 64; shift += 8) {
        uint32_t at[256] = {0}, sum = 0;
        if ((differing >> shift & 0xff) == 0) continue;
        for (uint32_t i = 0; i < n; i++) at[from[i].key >> shift & 0xff]++;
        for (int byte = 0; byte < 256; byte++) {
            const uint32_t count = at[byte];
            at[byte]             = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++) to[at[from[i].key >> shift & 0xff]++] = from[i];
        placed *sorted = to;
        to             = from;
        from           = sorted;
    }
    if (from != key) memcpy(key, from, n * sizeof *key);
}

static bool has_handler(const pen_table *t)
{
    return t->handler[0] != '\0';
}

static uint32_t length_of(const sorting *s, uint32_t at)
{
    return s->table->dim > 0 ? s->table->dim : s->kv->in_lens[at];
}

static bool take_answer(ps_client_sink *sink, const void *answer, size_t size);

/* Counts the different keys of each part, and the bytes of its question. */
static pen_status measure(sorting *s, table_request *r, pen_error *why)
{
    const pen_table *t   = s->table;
    const rows_form form = s->pushes ? ROWS_PUSHED : ROWS_ASKED;
    const size_t width   = plan_dtype_bytes(t->push_dtype);
    const bool needs_all = s->pushes && t->counts;
    for (uint32_t p = 0; p < t->parts; p++) {
        placed *key       = &s->key[s->begin[p]];
        const uint32_t n  = s->count[p];
        uint64_t elements = 0, different = 0;
        if (t->sorts) sort(key, s->spare, n);
        for (uint32_t i = 0; i < n; i++) {
            const bool is_new = i == 0 || key[i].key != key[i - 1].key;
            different += is_new;
            if (s->pushes && is_new) elements += length_of(s, key[i].at);
            if (s->pushes && !is_new && length_of(s, key[i].at) != length_of(s, key[i - 1].at))
                return why_set(why, PEN_INVALID_ARGUMENT,
                               "'%s': key %" PRIu64 " comes with %u and with %u values", t->name,
                               key[i].key, length_of(s, key[i - 1].at), length_of(s, key[i].at));
        }
        size_t size = rows_bytes(form, different, elements, t->dim, width);
        if (size != SIZE_MAX && has_handler(t)) size += sizeof(rows_call);
        if (size > WIRE_PAYLOAD_BYTES_MAX ||
            rows_bytes(ROWS_ANSWERED, different, different * t->dim, t->dim,
                       plan_dtype_bytes(t->desc.dtype)) == SIZE_MAX)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "'%s': %u keys of one part are more than %" PRIu64
                           " bytes; use fewer keys in a call",
                           t->name, n, WIRE_PAYLOAD_BYTES_MAX);
        if (n == 0 && !needs_all) continue;
        r->part[r->n_parts++] = (table_part){.sink    = {take_answer},
                                             .request = r,
                                             .part    = p,
                                             .n       = (uint32_t)different,
                                             .size    = (uint32_t)size};
        s->size += size;
    }
    return PEN_OK;
}

/* ---- questions ------------------------------------------------------------------------------- */
static const uint8_t *value_of(const sorting *s, uint32_t at)
{
    const uint64_t first = s->value != NULL ? s->value[at] : (uint64_t)at * s->table->dim;
    return (const uint8_t *)s->kv->in + first * plan_dtype_bytes(s->table->desc.dtype);
}

/* The gradients of one key, `n` times in the call, in the type of the wire. */
static void add_up(sorting *s, const placed *key, uint32_t n, uint8_t *to)
{
    const pen_table *t    = s->table;
    const uint32_t length = length_of(s, key->at);
    if (n == 1 && t->desc.dtype == t->push_dtype) {
        memcpy(to, value_of(s, key->at), length * plan_dtype_bytes(t->push_dtype));
        return;
    }
    simd()->decode(s->sum, value_of(s, key->at), t->desc.dtype, length);
    for (uint32_t i = 1; i < n; i++)
        (void)simd()->fold_add(s->sum, s->sum, value_of(s, key[i].at), t->desc.dtype, 1, length);
    simd()->encode(to, s->sum, t->push_dtype, length);
}

static void write_part(sorting *s, table_part *p)
{
    table_request *q     = p->request;
    const pen_table *t   = s->table;
    const size_t width   = plan_dtype_bytes(t->push_dtype);
    const uint32_t begin = s->begin[p->part], end = s->begin[p->part + 1];
    const rows_form form = s->pushes ? ROWS_PUSHED : ROWS_ASKED;
    uint64_t elements    = 0;
    for (uint32_t i = begin; s->pushes && i < end; i++)
        if (i == begin || s->key[i].key != s->key[i - 1].key)
            elements += length_of(s, s->key[i].at);
    uint8_t *bytes = p->bytes;
    if (has_handler(t)) {
        const rows_call c = {.cmd   = q->kv.cmd,
                             .verbs = (q->pushes ? ROWS_PUSHES : 0) | (q->pulls ? ROWS_PULLS : 0)};
        memcpy(bytes, &c, sizeof c);
        bytes += sizeof c;
    }
    const rows r  = rows_lay(bytes, form, p->n, (uint32_t)elements, t->dim);
    uint8_t *keys = (uint8_t *)(uintptr_t)r.key, *lengths = (uint8_t *)(uintptr_t)r.length;
    uint8_t *values = (uint8_t *)(uintptr_t)r.value;
    uint32_t number = 0;
    for (uint32_t i = begin, same; i < end; i += same, number++) {
        const placed *key = &s->key[i];
        for (same = 0; i + same < end && key[same].key == key->key; same++)
            q->place[i + same] = key[same].at;
        memcpy(keys + number * sizeof key->key, &key->key, sizeof key->key);
        if (q->first != NULL) q->first[p->first + number] = i;
        if (!s->pushes) continue;
        const uint32_t length = length_of(s, key->at);
        if (t->dim == 0) memcpy(lengths + number * sizeof length, &length, sizeof length);
        add_up(s, key, same, values);
        values += length * width;
    }
}

static pen_status write_all(sorting *s, table_request *r, pen_error *why)
{
    uint8_t *bytes = calloc(1, s->size + 1);
    uint32_t first = 0;
    r->bytes       = bytes;
    if (bytes == NULL)
        return why_set(why, PEN_NO_MEMORY, "'%s': no memory for %zu keys", r->table->name, r->kv.n);
    for (uint32_t i = 0; i < r->n_parts; i++) {
        table_part *p = &r->part[i];
        p->bytes      = bytes;
        p->first      = first;
        bytes += p->size;
        first += p->n;
        write_part(s, p);
    }
    if (r->first != NULL) r->first[first] = (uint32_t)r->kv.n;
    return PEN_OK;
}

static pen_status make_sorted(sorting *s, table_request *r, pen_error *why)
{
    const size_t n = r->kv.n;
    void *memory =
        ARRAYS_NEW(ARRAY(s->value, s->kv->in_lens != NULL ? n : 1), ARRAY(s->key, n + 1),
                   ARRAY(s->spare, s->table->sorts ? n + 1 : 1), ARRAY(s->count, s->table->parts),
                   ARRAY(s->begin, s->table->parts + 1), ARRAY(s->part, n + 1));
    pen_status status = memory != NULL ? PEN_OK
                                       : why_set(why, PEN_NO_MEMORY, "'%s': no memory for %zu keys",
                                                 s->table->name, n);
    if (s->kv->in_lens == NULL) s->value = NULL;
    if (status == PEN_OK) status = deal(s, why);
    if (status == PEN_OK) status = measure(s, r, why);
    if (status == PEN_OK && s->pushes) s->sum = malloc((s->longest + 1) * sizeof *s->sum);
    if (status == PEN_OK && s->pushes && s->sum == NULL)
        status = why_set(why, PEN_NO_MEMORY, "'%s': no memory for a row", s->table->name);
    if (status == PEN_OK) status = write_all(s, r, why);
    if (status == PEN_OK && r->pulls && r->kv.out_new != NULL && s->table->dim > 0) {
        r->is_new = true;
        r->kv.out = malloc(n * s->table->dim * plan_dtype_bytes(s->table->desc.dtype) + 1);
        r->kv.out_new->data = NULL;
        r->kv.out_new->size = 0;
        if (r->kv.out == NULL)
            status = why_set(why, PEN_NO_MEMORY, "'%s': no memory for the values of %zu keys",
                             s->table->name, n);
    }
    free(s->sum);
    free(memory);
    return status;
}

pen_status table_request_begin(pen_table *t, const pen_kv *kv, ps_client_verb verb,
                               table_request **out, uint64_t *count, pen_error *why)
{
    *count            = 0;
    pen_status status = check(t, kv, verb, count, why);
    if (status != PEN_OK) return status;
    table_request *r = calloc(1, sizeof *r);
    const size_t n   = kv->n;
    if (r != NULL)
        r->memory = ARRAYS_NEW(ARRAY(r->part, t->parts), ARRAY(r->first, t->sorts ? n + 1 : 1),
                               ARRAY(r->place, n + 1));
    if (r == NULL || r->memory == NULL) {
        free(r);
        return why_set(why, PEN_NO_MEMORY, "'%s': no memory for %zu keys", t->name, n);
    }
    r->table  = t;
    r->kv     = *kv;
    r->pushes = verb != PS_PULL;
    r->pulls  = verb != PS_PUSH;
    r->verb   = has_handler(t) ? PS_PUSH_PULL : verb;
    if (!t->sorts) r->first = NULL;
    sorting s = {.table = t, .kv = kv, .pushes = r->pushes};
    status    = make_sorted(&s, r, why);
    if (status == PEN_OK)
        *out = r;
    else
        (void)table_request_end(r, status, count, NULL);
    return status;
}

/* ---- answers --------------------------------------------------------------------------------- */
static uint32_t first_place(const table_request *r, uint32_t number)
{
    return r->first != NULL ? r->first[number] : number;
}

static void scatter(const table_part *p, const rows *answered)
{
    const table_request *r = p->request;
    const size_t size      = r->table->dim * plan_dtype_bytes(r->table->desc.dtype);
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t end = first_place(r, p->first + i + 1);
        for (uint32_t k = first_place(r, p->first + i); k < end; k++) {
            memcpy((uint8_t *)r->kv.out + r->place[k] * size, answered->value + i * size, size);
            if (r->kv.out_lens != NULL) r->kv.out_lens[r->place[k]] = r->table->dim;
        }
    }
}

/* The answer of a handler: takes its head off.  False: damaged.  *is_over: no rows follow. */
static bool take_head(table_part *p, const void **answer, size_t *size, bool *is_over)
{
    table_request *r   = p->request;
    const size_t width = plan_dtype_bytes(r->table->desc.dtype);
    rows unused;
    pen_error why;
    bool is_bad;
    const pen_status status =
        rows_read_reply(*answer, *size, r->pulls, r->table->dim, width, &unused, &is_bad, &why);
    if (is_bad) return false;
    *is_over = status != PEN_OK || !r->pulls;
    *answer  = (const uint8_t *)*answer + sizeof(rows_reply);
    *size -= sizeof(rows_reply);
    if (status == PEN_OK || r->refusal != NULL) return true;
    r->refusal = malloc(sizeof why);
    if (r->refusal != NULL) *r->refusal = why;
    return r->refusal != NULL;
}

static bool take_answer(ps_client_sink *sink, const void *answer, size_t size)
{
    table_part *p      = (table_part *)sink;
    const pen_table *t = p->request->table;
    const size_t width = plan_dtype_bytes(t->desc.dtype);
    bool is_over       = false;
    rows answered;
    pen_error why;
    if (has_handler(t) && !take_head(p, &answer, &size, &is_over)) return false;
    if (is_over) return true;
    if (rows_read(answer, size, ROWS_ANSWERED, t->dim, width, &answered, &why) != PEN_OK ||
        answered.n != p->n)
        return false;
    if (t->dim > 0) {
        scatter(p, &answered);
        return true;
    }
    free(p->answer);
    p->answer = malloc(size);
    if (p->answer == NULL) return false; /* it asks again */
    memcpy(p->answer, answer, size);
    return rows_read(p->answer, size, ROWS_ANSWERED, 0, width, &p->answered, &why) == PEN_OK;
}

/* Rows that differ in length: how long each is, and how many values that is. */
static uint64_t take_lengths(const table_request *r)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->n_parts; i++) {
        const table_part *p = &r->part[i];
        for (uint32_t k = 0; k < p->n; k++)
            for (uint32_t at = first_place(r, p->first + k); at < first_place(r, p->first + k + 1);
                 at++) {
                r->kv.out_lens[r->place[at]] = rows_length(&p->answered, k, 0);
                sum += rows_length(&p->answered, k, 0);
            }
    }
    return sum;
}

static pen_status put_in_order(table_request *r, uint64_t *count, pen_error *why)
{
    const size_t width = plan_dtype_bytes(r->table->desc.dtype);
    *count             = take_lengths(r);
    if (r->kv.out != NULL && r->kv.out_cap < *count)
        return why_set(why, PEN_TOO_SMALL,
                       "'%s': out has room for %zu elements, %" PRIu64 " have come", r->table->name,
                       r->kv.out_cap, *count);
    uint64_t *start = malloc((r->kv.n + 1) * sizeof *start), at = 0;
    r->is_new = r->kv.out == NULL;
    if (r->is_new) r->kv.out = malloc(*count * width + 1);
    if (start == NULL || r->kv.out == NULL) {
        free(start);
        return why_set(why, PEN_NO_MEMORY, "'%s': no memory for the values of %zu keys",
                       r->table->name, r->kv.n);
    }
    for (size_t i = 0; i < r->kv.n; at += r->kv.out_lens[i++]) start[i] = at;
    for (uint32_t i = 0; i < r->n_parts; i++) {
        const table_part *p  = &r->part[i];
        const uint8_t *value = p->answered.value;
        for (uint32_t k = 0; k < p->n; k++) {
            const size_t size = rows_length(&p->answered, k, 0) * width;
            for (uint32_t to = first_place(r, p->first + k); to < first_place(r, p->first + k + 1);
                 to++)
                memcpy((uint8_t *)r->kv.out + start[r->place[to]] * width, value, size);
            value += size;
        }
    }
    free(start);
    return PEN_OK;
}

pen_status table_request_end(table_request *r, pen_status status, uint64_t *count, pen_error *why)
{
    if (status == PEN_OK && r->refusal != NULL) {
        status = r->refusal->status;
        if (why != NULL) *why = *r->refusal;
    }
    if (status == PEN_OK) *count = (uint64_t)r->kv.n * r->table->dim;
    if (status == PEN_OK && r->pulls && r->table->dim == 0) status = put_in_order(r, count, why);
    if (r->is_new && status == PEN_OK)
        *r->kv.out_new = (pen_bytes){r->kv.out, *count * plan_dtype_bytes(r->table->desc.dtype)};
    else if (r->is_new)
        free(r->kv.out);
    for (uint32_t i = 0; i < r->n_parts; i++) free(r->part[i].answer);
    free(r->refusal);
    free(r->bytes);
    free(r->memory);
    free(r);
    return status;
}
