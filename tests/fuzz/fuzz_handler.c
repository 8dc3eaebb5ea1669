/* fuzz_handler.c - for any bytes of a request to a handler: what is accepted lies inside of them, and the handler reads
 * it; of an answer: rows, a sentence, or refused; of a saved state that moves: loaded whole, or refused.
 *
 * The first byte of an input chooses which, dim, and whether it pulls; the rest is the bytes. */
#include "common/base/why.h"
#include "server/shard/handler/handler_part.h"
#include "tests/fuzz/fuzz.h"

enum { WORLD = 2 };

static void on_request(void *state, pen_call *call, const pen_kv_msg *m)
{
    static float out[1 << 16];
    const uint8_t *value = m->vals;
    uint64_t elements    = 0;
    pen_error why;
    (void)state;
    for (size_t i = 0; i < m->n; i++) {
        FUZZ_CHECK(i == 0 || m->keys[i - 1] < m->keys[i]);
        if (m->lens != NULL) elements += m->lens[i];
    }
    FUZZ_CHECK(m->lens == NULL || elements == m->vals_n);
    for (size_t i = 0; i < m->vals_n * 4 && m->push; i++) fuzz_sink += value[i];
    (void)call->reply(call, PEN_OK, m->pull ? out : NULL, m->pull ? m->n * 4 : 0, NULL, &why);
}

static pen_status on_save(void *state, pen_bytes *out)
{
    (void)state;
    *out = (pen_bytes){0};
    return PEN_OK;
}

static pen_status on_load(void *state, const void *data, size_t size)
{
    (void)state;
    for (size_t i = 0; i < size; i++) fuzz_sink += ((const uint8_t *)data)[i];
    return PEN_OK;
}

static void on_answered(void *owner, handler_call *call)
{
    (void)owner;
    FUZZ_CHECK(handler_call_settle(call) != NULL);
}

static void run(handler_part *part, const uint8_t *bytes, size_t size, uint32_t dim)
{
    const handler_call from = {.rank = 1, .incarnation = 3, .seq = size};
    rows_call c;
    rows r;
    pen_error why;
    if (rows_read_call(bytes, size, dim, 4, &c, &r, &why) != PEN_OK) {
        FUZZ_CHECK(why.status == PEN_CORRUPT);
        return;
    }
    FUZZ_CHECK(handler_part_request(part, &from, &c, &r, &why) == PEN_OK);
}

static void hear(const uint8_t *bytes, size_t size, uint32_t dim, bool pulls)
{
    rows r = {0};
    bool is_bad;
    pen_error why;
    const pen_status status = rows_read_reply(bytes, size, pulls, dim, 4, &r, &is_bad, &why);
    FUZZ_CHECK(!is_bad || size < 16 || status == PEN_CORRUPT || status == PEN_OK);
    if (is_bad || status != PEN_OK || !pulls) return;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < r.n; i++) elements += rows_length(&r, i, dim);
    FUZZ_CHECK(elements == r.elements && r.value + elements * 4 <= bytes + size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const pen_handler handler = {
        .name = "any", .request = on_request, .save = on_save, .load = on_load};
    static int owner;
    if (size < 1) return 0;
    const uint32_t dim        = (data[0] & 3) == 3 ? 16 : data[0] & 3;
    const handler_setup setup = {.handler    = &handler,
                                 .table      = "t",
                                 .parts      = 1,
                                 .dim        = dim,
                                 .world_size = WORLD,
                                 .dtype      = PEN_F32,
                                 .owner      = &owner,
                                 .answered   = on_answered};
    handler_part *part;
    pen_error why;
    FUZZ_CHECK(handler_part_open(&setup, &part, &why) == PEN_OK);
    uint8_t *bytes = malloc(size); /* of its own, so that no read goes beyond it unseen */
    FUZZ_CHECK(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 16)
        hear(bytes, size - 1, dim, (data[0] & 8) != 0);
    else if (data[0] & 32)
        (void)handler_part_take(part, 0, bytes, size - 1, true, &why);
    else
        run(part, bytes, size - 1, dim);
    handler_part_close(part);
    free(bytes);
    return 0;
}
