/* row_store.c - see row_store.h. */
#include "server/shard/table/row_store.h"

#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/containers/vec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNIT        = 8,                            /* rows begin on this border */
    UNITS       = ROW_STORE_BLOCK_BYTES / UNIT, /* of a block; a larger one has one row */
    BLOCKS_MAX  = UINT32_MAX / UNITS,
    SLOTS_FIRST = 1 << 10, /* of the hash table */
    AHEAD       = 64       /* rows whose memory is fetched together */
};

typedef struct { /* the beginning of a block */
    uint32_t used, rows;
} block_head;

typedef struct {
    uint64_t key;
    uint32_t updates, length;
    float data[]; /* values, then slots */
} row;

typedef struct {
    uint64_t key;
    uint32_t at; /* block x UNITS + offset / UNIT; 0: free, because a block begins with its head */
} entry;

struct row_store {
    row_store_rules rules;
    buf **block;
    uint32_t n_blocks;
    size_t capacity;
    uint64_t n, bytes; /* rows; of blocks */
    entry *table;
    uint64_t mask;  /* size of the table - 1 */
    float *scratch; /* a row's gradient or values */
    size_t scratch_n;
    double norms[2 * (ROWS_LENGTH_MAX / SIMD_BLOCK)];
};

/* ---- memory ---------------------------------------------------------------------------------- */
row_store *row_store_create(const row_store_rules *rules)
{
    row_store *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    self->rules = *rules;
    self->mask  = SLOTS_FIRST - 1;
    self->table = calloc(SLOTS_FIRST, sizeof *self->table);
    if (self->table != NULL) return self;
    free(self);
    return NULL;
}

void row_store_clear(row_store *self)
{
    for (uint32_t i = 0; i < self->n_blocks; i++) buf_release(self->block[i]);
    memset(self->table, 0, (self->mask + 1) * sizeof *self->table);
    self->n_blocks = 0;
    self->n = self->bytes = 0;
}

void row_store_destroy(row_store *self)
{
    if (self == NULL) return;
    row_store_clear(self);
    free(self->block);
    free(self->table);
    free(self->scratch);
    free(self);
}

static bool has_scratch(row_store *self, size_t n)
{
    if (n <= self->scratch_n) return true;
    float *more = realloc(self->scratch, n * sizeof *more);
    if (more == NULL) return false;
    self->scratch   = more;
    self->scratch_n = n;
    return true;
}

/* ---- blocks ---------------------------------------------------------------------------------- */
static size_t row_size(const row_store *self, uint32_t length)
{
    const size_t numbers = length + optim_row_slots(self->rules.optim, length);
    return (sizeof(row) + numbers * sizeof(float) + UNIT - 1) / UNIT * UNIT;
}

static block_head *head_of(const buf *block)
{
    return block->data;
}

static row *row_at(const row_store *self, uint32_t at)
{
    return (row *)(void *)((char *)self->block[at / UNITS]->data + (size_t)(at % UNITS) * UNIT);
}

size_t row_store_used(const buf *block)
{
    return head_of(block)->used;
}

static bool push_block(row_store *self, buf *block)
{
    if (block == NULL || self->n_blocks == BLOCKS_MAX ||
        !VEC_ROOM(self->block, self->capacity, self->n_blocks + 1)) {
        buf_release(block);
        return false;
    }
    self->block[self->n_blocks++] = block;
    self->bytes += block->size;
    return true;
}

static buf *new_block(size_t row_bytes)
{
    const size_t least = sizeof(block_head) + row_bytes;
    buf *block         = buf_new(least > ROW_STORE_BLOCK_BYTES ? least : ROW_STORE_BLOCK_BYTES);
    if (block == NULL) return NULL;
    memset(block->data, 0, block->size);
    head_of(block)->used = sizeof(block_head);
    return block;
}

/* Copies a block that a snapshot or the log holds. */
static bool is_writable(row_store *self, uint32_t i)
{
    buf *now = self->block[i];
    if (buf_is_alone(now)) return true;
    buf *fresh = buf_new(now->size);
    if (fresh == NULL) return false;
    memcpy(fresh->data, now->data, now->size);
    buf_release(now);
    self->block[i] = fresh;
    return true;
}

/* ---- the hash table -------------------------------------------------------------------------- */
static entry *place_of(const row_store *self, uint64_t key)
{
    uint64_t i = rows_hash(key) & self->mask;
    while (self->table[i].at != 0 && self->table[i].key != key) i = (i + 1) & self->mask;
    return &self->table[i];
}

static bool grow(row_store *self)
{
    if ((self->n + 1) * 5 < (self->mask + 1) * 3) return true;
    const entry *old    = self->table;
    const uint64_t size = self->mask + 1;
    entry *more         = calloc(size * 2, sizeof *more);
    if (more == NULL) return false;
    self->table = more;
    self->mask  = size * 2 - 1;
    for (uint64_t i = 0; i < size; i++)
        if (old[i].at != 0) *place_of(self, old[i].key) = old[i];
    free((void *)(uintptr_t)old);
    return true;
}

void row_store_ahead(const row_store *self, const rows *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        __builtin_prefetch(&self->table[rows_hash(rows_key(r, i)) & self->mask]);
}

/* Positions of up to AHEAD keys, 0 for missing rows; their memory is on its way to the cache. */
static void find(const row_store *self, const rows *r, uint32_t first, uint32_t n, uint32_t *at)
{
    const size_t all = row_size(self, self->rules.dim), size = all < 512 ? all : 512;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = place_of(self, rows_key(r, first + i))->at;
        if (at[i] == 0) continue;
        const char *begin = (const char *)row_at(self, at[i]);
        for (size_t line = 0; line < size; line += 64) __builtin_prefetch(begin + line);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */
static optim_span span_of(const row_store *self, row *r, const float *grad, double lr,
                          double gscale)
{
    optim_span span        = {.param  = r->data,
                              .grad   = grad,
                              .n      = r->length,
                              .step   = (uint64_t)r->updates + 1,
                              .lr     = lr,
                              .gscale = gscale};
    const optim_ops *optim = self->rules.optim;
    const size_t each      = optim->update_row != NULL ? 1 : r->length;
    for (int i = 0; i < optim->slot_count; i++)
        span.slot[i] = r->data + r->length + each * (size_t)i;
    return span;
}

/* 0: no memory. */
static uint32_t make_row(row_store *self, uint64_t key, uint32_t length)
{
    const size_t size   = row_size(self, length);
    const uint32_t last = self->n_blocks - 1;
    const bool fits =
        self->n_blocks > 0 && head_of(self->block[last])->used + size <= ROW_STORE_BLOCK_BYTES;
    if (!grow(self) || (fits ? !is_writable(self, last) : !push_block(self, new_block(size))))
        return 0;
    block_head *head  = head_of(self->block[self->n_blocks - 1]);
    const uint32_t at = (self->n_blocks - 1) * UNITS + head->used / UNIT;
    row *made         = row_at(self, at);
    made->key         = key;
    made->length      = length;
    init_row(&self->rules.init, self->rules.seed, key, 0, length, made->data);
    const optim_span span = span_of(self, made, NULL, 0, 0);
    if (self->rules.optim->slot_init != NULL)
        self->rules.optim->slot_init(&self->rules.hyper, &span);
    head->used += (uint32_t)size;
    head->rows++;
    *place_of(self, key) = (entry){key, at};
    self->n++;
    return at;
}

pen_status row_store_check(const row_store *self, const rows *r, pen_error *why)
{
    for (uint32_t i = 0; self->rules.dim == 0 && i < r->n; i++) {
        const uint32_t length = rows_length(r, i, 0), at = place_of(self, rows_key(r, i))->at;
        if (length == 0)
            return why_set(why, PEN_INVALID_ARGUMENT, "key %" PRIu64 " comes with no values",
                           rows_key(r, i));
        if (at != 0 && row_at(self, at)->length != length)
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "key %" PRIu64 " comes with %u values and has %u", rows_key(r, i),
                           length, row_at(self, at)->length);
    }
    return PEN_OK;
}

static void update_row(row_store *self, row *to, const void *grad, pen_dtype dtype, double lr,
                       double gscale)
{
    const float *numbers = grad;
    if (dtype != PEN_F32) {
        simd()->decode(self->scratch, grad, dtype, to->length);
        numbers = self->scratch;
    }
    optim_span span = span_of(self, to, numbers, lr, gscale);
    optim_apply_row(self->rules.optim, &self->rules.hyper, &span, self->norms);
    to->updates++;
}

pen_status row_store_update(row_store *self, const rows *r, pen_dtype dtype, double lr,
                            double gscale, uint32_t *crc, pen_error *why)
{
    const size_t width   = dtype == PEN_F32 ? 4 : 2;
    const uint8_t *value = r->value;
    uint32_t at[AHEAD];
    if (crc != NULL) *crc = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t length = rows_length(r, i, self->rules.dim);
        if (i % AHEAD == 0) find(self, r, i, r->n - i < AHEAD ? r->n - i : AHEAD, at);
        uint32_t here = at[i % AHEAD];
        bool done     = has_scratch(self, length);
        if (done && here == 0) here = make_row(self, rows_key(r, i), length);
        if (!done || here == 0 || !is_writable(self, here / UNITS))
            return why_set(why, PEN_NO_MEMORY, "no memory for %" PRIu64 " rows", self->n + 1);
        row *to = row_at(self, here);
        update_row(self, to, value, dtype, lr, gscale);
        if (crc != NULL) *crc = crc32c(*crc, to, row_size(self, length));
        value += length * width;
    }
    return PEN_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */
uint64_t row_store_elements(const row_store *self, const rows *asked)
{
    if (self->rules.dim > 0) return (uint64_t)asked->n * self->rules.dim;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < asked->n; i++) {
        const uint32_t at = place_of(self, rows_key(asked, i))->at;
        if (at != 0) sum += row_at(self, at)->length;
    }
    return sum;
}

void row_store_read(const row_store *self, const rows *asked, const rows *answer, pen_dtype dtype)
{
    const size_t width = dtype == PEN_F32 ? 4 : 2;
    uint8_t *value     = (uint8_t *)(uintptr_t)answer->value;
    float fresh[256];
    uint32_t at[AHEAD];
    for (uint32_t i = 0; i < asked->n; i++) {
        if (i % AHEAD == 0) find(self, asked, i, asked->n - i < AHEAD ? asked->n - i : AHEAD, at);
        const row *from       = at[i % AHEAD] != 0 ? row_at(self, at[i % AHEAD]) : NULL;
        const uint32_t length = from != NULL ? from->length : self->rules.dim;
        if (self->rules.dim == 0)
            memcpy((uint8_t *)(uintptr_t)answer->length + i * sizeof length, &length,
                   sizeof length);
        for (uint32_t done = 0; from == NULL && done < length;) {
            const uint32_t n = length - done < 256 ? length - done : 256;
            init_row(&self->rules.init, self->rules.seed, rows_key(asked, i), done, n, fresh);
            simd()->encode(value + done * width, fresh, dtype, n);
            done += n;
        }
        if (from != NULL) simd()->encode(value, from->data, dtype, length);
        value += length * width;
    }
}

uint64_t row_store_bytes(const row_store *self)
{
    return self->bytes + (self->mask + 1) * sizeof *self->table;
}
uint32_t row_store_blocks(const row_store *self)
{
    return self->n_blocks;
}
buf *row_store_block(const row_store *self, uint32_t i)
{
    return self->block[i];
}

/* ---- blocks of others ------------------------------------------------------------------------ */
/* The next row of a block, or NULL with a reason. */
static const row *next_row(const row_store *self, const buf *block, size_t offset, pen_error *why)
{
    const size_t used = head_of(block)->used;
    const row *r      = (const row *)(const void *)((const char *)block->data + offset);
    if (used - offset >= sizeof *r && r->length >= 1 && r->length <= ROWS_LENGTH_MAX &&
        (self->rules.dim == 0 || r->length == self->rules.dim) &&
        row_size(self, r->length) <= used - offset && offset / UNIT < UNITS)
        return r;
    why_set(why, PEN_CORRUPT, "a block of rows is damaged at byte %zu", offset);
    return NULL;
}

pen_status row_store_add_block(row_store *self, const void *data, size_t size, pen_error *why)
{
    block_head head = {0};
    if (size >= sizeof head) memcpy(&head, data, sizeof head);
    if (head.used < sizeof head || head.used > size)
        return why_set(why, PEN_CORRUPT, "a block of %zu bytes says that %u are used", size,
                       head.used);
    buf *block = new_block(head.used - sizeof head);
    if (!push_block(self, block))
        return why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes of rows", size);
    memcpy(block->data, data, head.used);
    uint32_t n = 0;
    for (size_t offset = sizeof head; offset < head.used; n++) {
        const row *r = next_row(self, block, offset, why);
        if (r == NULL) return why->status;
        if (!grow(self)) return why_set(why, PEN_NO_MEMORY, "no memory for %u rows", head.rows);
        entry *e = place_of(self, r->key);
        if (e->at != 0) return why_set(why, PEN_CORRUPT, "key %" PRIu64 " has two rows", r->key);
        *e = (entry){r->key, (self->n_blocks - 1) * UNITS + (uint32_t)(offset / UNIT)};
        self->n++;
        offset += row_size(self, r->length);
    }
    if (n == head.rows) return PEN_OK;
    return why_set(why, PEN_CORRUPT, "a block of rows has %u of %u", n, head.rows);
}
