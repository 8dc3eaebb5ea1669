/* fuzz_rows.c - for any bytes of a part of a table, in every form: what is accepted lies inside of them and ascends, an
 * update with it leaves a store whose blocks another accepts, with equal values, and any bytes as a block are accepted
 * whole or refused.  As a question about slots they name an array that is there, and have its size.
 *
 * The first byte of an input chooses dim, form and type; the rest is the bytes. */
#include "proto/rows.h"
#include "server/shard/table/row_store.h"
#include "tests/fuzz/fuzz.h"

static row_store *new_store(uint32_t dim)
{
    row_store_rules rules = {
        .dim = dim, .init = {.kind = INIT_UNIFORM, .a = -1, .b = 1}, .seed = 7};
    pen_error why;
    FUZZ_CHECK(optim_parse("adagrad lr=0.1", &rules.optim, &rules.hyper, &why) == PEN_OK);
    row_store *store = row_store_create(&rules);
    FUZZ_CHECK(store != NULL);
    return store;
}

static void walk(const rows *r, rows_form form, uint32_t dim, size_t width, const uint8_t *end)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        if (form != ROWS_ANSWERED) FUZZ_CHECK(i == 0 || rows_key(r, i - 1) < rows_key(r, i));
        if (form != ROWS_ASKED) elements += rows_length(r, i, dim);
    }
    if (form == ROWS_ASKED) return;
    FUZZ_CHECK(elements == r->elements);
    FUZZ_CHECK(r->value + elements * width <= end);
    for (uint64_t i = 0; i < elements * width; i++) fuzz_sink += r->value[i];
}

/* All values that an answer about these keys has. */
static void *read_all(row_store *store, const rows *asked, uint32_t dim, size_t *size)
{
    const uint64_t elements = row_store_elements(store, asked);
    *size                   = rows_bytes(ROWS_ANSWERED, asked->n, elements, dim, 4);
    FUZZ_CHECK(*size != SIZE_MAX);
    void *answer = calloc(1, *size);
    FUZZ_CHECK(answer != NULL);
    const rows r = rows_lay(answer, ROWS_ANSWERED, asked->n, (uint32_t)elements, dim);
    row_store_read(store, asked, &r, PEN_F32);
    return answer;
}

static void train(const rows *r, uint32_t dim, pen_dtype dtype)
{
    row_store *store = new_store(dim), *copy = new_store(dim);
    size_t size, copied;
    uint32_t crc;
    pen_error why;
    if (row_store_check(store, r, &why) == PEN_OK) {
        FUZZ_CHECK(row_store_update(store, r, dtype, 0.1, 1, &crc, &why) == PEN_OK);
        for (uint32_t i = 0; i < row_store_blocks(store); i++) {
            const buf *block = row_store_block(store, i);
            FUZZ_CHECK(row_store_add_block(copy, block->data, row_store_used(block), &why) ==
                       PEN_OK);
        }
        void *a = read_all(store, r, dim, &size), *b = read_all(copy, r, dim, &copied);
        FUZZ_CHECK(size == copied && memcmp(a, b, size) == 0);
        free(a);
        free(b);
    }
    row_store_destroy(store);
    row_store_destroy(copy);
}

static void ask_slots(const uint8_t *data, size_t size, uint64_t count)
{
    slots_call c;
    pen_error why;
    if (slots_read(data, size, 3, count, &c, &why) != PEN_OK) return;
    FUZZ_CHECK(c.what >= SLOTS_READ && c.what <= SLOTS_COUNT && c.array < 3 && c.applied >= 0);
    FUZZ_CHECK(size == sizeof c + (c.what == SLOTS_SET ? count * sizeof(float) : 0));
    for (size_t i = sizeof c; i < size; i++) fuzz_sink += data[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t dims[] = {0, 1, 3, 16};
    if (size < 1) return 0;
    const uint32_t dim    = dims[data[0] & 3];
    const rows_form form  = (rows_form)(data[0] >> 2 & 3) % 3;
    const pen_dtype dtype = data[0] & 16 ? PEN_BF16 : PEN_F32;
    const size_t width    = dtype == PEN_F32 ? 4 : 2;
    pen_error why;
    rows r;
    uint8_t *bytes = malloc(size); /* of its own, so that no read goes beyond it unseen */
    FUZZ_CHECK(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    if (rows_read(bytes, size - 1, form, dim, width, &r, &why) == PEN_OK) {
        walk(&r, form, dim, width, bytes + size - 1);
        if (form == ROWS_PUSHED) train(&r, dim, dtype);
    }
    ask_slots(bytes, size - 1, dim);
    row_store *store = new_store(dim);
    if (row_store_add_block(store, bytes, size - 1, &why) != PEN_OK)
        FUZZ_CHECK(why.status == PEN_CORRUPT || why.status == PEN_NO_MEMORY);
    row_store_destroy(store);
    free(bytes);
    return 0;
}
