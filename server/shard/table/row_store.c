/* row_store.c - blocks of rows, the hash table that finds them, and updates of a batch. */
#include "server/shard/table/row_store.h"

#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/containers/arrays.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    LARGE       = 2 << 20, /* of blocks, but for the first ones; and the size of a huge page */
    SMALL       = 64 << 10,
    UNIT        = 8,            /* rows begin on this border */
    UNITS       = LARGE / UNIT, /* of a block; a larger one has one row */
    BLOCKS_MAX  = UINT32_MAX / UNITS,
    SLOTS_FIRST = 1 << 10, /* of the hash table */
    AHEAD       = 64,      /* rows whose memory is fetched together, */
    AHEAD_BYTES = 512      /* and how much of each at most */
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
    char **base; /* [n_blocks] data of each */
    bool *lent;  /* [n_blocks] may have another holder; small, because every update of a row asks */
    uint32_t n_blocks;
    size_t capacity, base_capacity, lent_capacity;
    uint64_t n, bytes; /* rows; of blocks */
    entry *table;
    uint64_t mask;  /* size of the table - 1 */
    float *scratch; /* a row's gradient or values */
    size_t scratch_n;
    double norms[2 * (ROWS_LENGTH_MAX / SIMD_BLOCK)];
};

/* ---- memory ---------------------------------------------------------------------------------- */
/* Zeroed; free() it. */
static void *new_memory(size_t size)
{
    if (size < LARGE) return calloc(1, size);
    size         = (size + LARGE - 1) / LARGE * LARGE;
    void *memory = aligned_alloc(LARGE, size);
    if (memory == NULL) return NULL;
    (void)madvise(memory, size, MADV_HUGEPAGE);
    return memset(memory, 0, size);
}

static buf *new_buf(size_t size)
{
    void *memory = new_memory(size);
    buf *b       = memory != NULL ? buf_wrap(memory, size, free, memory) : NULL;
    if (b == NULL) free(memory);
    return b;
}

row_store *row_store_create(const row_store_rules *rules)
{
    row_store *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    self->rules = *rules;
    self->mask  = SLOTS_FIRST - 1;
    self->table = new_memory(SLOTS_FIRST * sizeof *self->table);
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
    free(self->base);
    free(self->lent);
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
    return (row *)(void *)(self->base[at / UNITS] + (size_t)(at % UNITS) * UNIT);
}

size_t row_store_used(const buf *block)
{
    return head_of(block)->used;
}

static bool push_block(row_store *self, buf *block)
{
    if (block == NULL || self->n_blocks == BLOCKS_MAX ||
        !VEC_ROOM(self->block, self->capacity, self->n_blocks + 1) ||
        !VEC_ROOM(self->base, self->base_capacity, self->n_blocks + 1) ||
        !VEC_ROOM(self->lent, self->lent_capacity, self->n_blocks + 1)) {
        buf_release(block);
        return false;
    }
    self->base[self->n_blocks]    = block->data;
    self->lent[self->n_blocks]    = false;
    self->block[self->n_blocks++] = block;
    self->bytes += block->size;
    return true;
}

/* Block i has this size, or one row. */
static size_t size_of_block(uint32_t i)
{
    return i < 5 ? (size_t)SMALL << i : LARGE;
}

/* The next block, for a row of this size at least. */
static buf *new_block(const row_store *self, size_t row_bytes)
{
    const size_t least = sizeof(block_head) + row_bytes, usual = size_of_block(self->n_blocks);
    buf *block = new_buf(least > usual ? least : usual);
    if (block != NULL) head_of(block)->used = sizeof(block_head);
    return block;
}

/* Copies a block that a snapshot or the log holds. */
static bool is_writable(row_store *self, uint32_t i)
{
    if (!self->lent[i]) return true;
    buf *now = self->block[i];
    if (!buf_is_alone(now)) {
        buf *fresh = new_buf(now->size);
        if (fresh == NULL) return false;
        memcpy(fresh->data, now->data, now->size);
        buf_release(now);
        self->block[i] = fresh;
        self->base[i]  = fresh->data;
    }
    self->lent[i] = false;
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
    entry *more         = new_memory(size * 2 * sizeof *more);
    if (more == NULL) return false;
    self->table = more;
    self->mask  = size * 2 - 1;
    for (uint64_t i = 0; i < size; i++)
        if (old[i].at != 0) *place_of(self, old[i].key) = old[i];
    free((void *)(uintptr_t)old);
    return true;
}

static size_t at_most(size_t size, size_t most)
{
    return size < most ? size : most;
}

void row_store_ahead(const row_store *self, const rows *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        __builtin_prefetch(&self->table[rows_hash(rows_key(r, i)) & self->mask]);
}

/* Positions of up to AHEAD keys, 0 for missing rows; the first `size` bytes of each are on their way to the cache. */
static void find_slots(const row_store *self, const rows *r, uint32_t first, size_t size,
                       uint32_t *at)
{
    const uint32_t n = r->n - first < AHEAD ? r->n - first : AHEAD;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = place_of(self, rows_key(r, first + i))->at;
        if (at[i] == 0) continue;
        const char *begin = (const char *)row_at(self, at[i]), *end = begin + size;
        for (; begin < end; begin += 64) __builtin_prefetch(begin);
        __builtin_prefetch(end - 1);
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
        self->n_blocks > 0 && head_of(self->block[last])->used + size <= size_of_block(last);
    if (!grow(self) || (fits ? !is_writable(self, last) : !push_block(self, new_block(self, size))))
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
    const size_t ahead   = at_most(row_size(self, self->rules.dim), AHEAD_BYTES);
    const uint8_t *value = r->value;
    uint32_t at[AHEAD];
    if (crc != NULL) *crc = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t length = rows_length(r, i, self->rules.dim);
        if (i % AHEAD == 0) find_slots(self, r, i, ahead, at);
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
    const size_t ahead = at_most(sizeof(row) + self->rules.dim * sizeof(float), AHEAD_BYTES);
    uint8_t *value     = (uint8_t *)(uintptr_t)answer->value;
    float fresh[256];
    uint32_t at[AHEAD];
    for (uint32_t i = 0; i < asked->n; i++) {
        if (i % AHEAD == 0) find_slots(self, asked, i, ahead, at);
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
buf *row_store_block(row_store *self, uint32_t i)
{
    self->lent[i] = true;
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
    buf *block = new_block(self, head.used - sizeof head);
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
