/* rows.c - lays out and checks the bytes of a part's rows, and of the calls around them. */
#include "proto/rows.h"

#include "common/base/utf8.h"
#include "common/base/why.h"
#include "proto/wire/wire.h"

#include <inttypes.h>

enum { HEAD = 2 * sizeof(uint32_t) };

static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

static size_t key_bytes(rows_form form, uint64_t n)
{
    return form != ROWS_ANSWERED ? n * sizeof(uint64_t) : 0;
}

static size_t length_bytes(rows_form form, uint64_t n, uint32_t dim)
{
    return form != ROWS_ASKED && dim == 0 ? padded(n * sizeof(uint32_t)) : 0;
}

size_t rows_bytes(rows_form form, uint64_t n, uint64_t elements, uint32_t dim, size_t width)
{
    if (n > WIRE_PAYLOAD_BYTES_MAX || elements > WIRE_PAYLOAD_BYTES_MAX) return SIZE_MAX;
    const size_t bytes = HEAD + key_bytes(form, n) + length_bytes(form, n, dim) +
                         (form != ROWS_ASKED ? padded(elements * width) : 0);
    return bytes <= WIRE_PAYLOAD_BYTES_MAX ? bytes : SIZE_MAX;
}

static rows look(const uint8_t *at, rows_form form, uint32_t n, uint32_t elements, uint32_t dim)
{
    rows r = {.n = n, .elements = elements};
    at += HEAD;
    if (form != ROWS_ANSWERED) r.key = at;
    at += key_bytes(form, n);
    if (length_bytes(form, n, dim) > 0) r.length = at;
    at += length_bytes(form, n, dim);
    if (form != ROWS_ASKED) r.value = at;
    return r;
}

rows rows_lay(void *data, rows_form form, uint32_t n, uint32_t elements, uint32_t dim)
{
    const uint32_t head[] = {n, elements};
    memcpy(data, head, sizeof head);
    return look(data, form, n, elements, dim);
}

static pen_status check_lengths(const rows *r, uint32_t dim, pen_error *why)
{
    uint64_t sum = dim > 0 ? (uint64_t)r->n * dim : 0;
    for (uint32_t i = 0; dim == 0 && i < r->n; i++) {
        const uint32_t length = rows_length(r, i, dim);
        sum += length;
        if (length > ROWS_LENGTH_MAX)
            return why_set(why, PEN_CORRUPT, "row %u has %u values; at most %d are allowed", i,
                           length, ROWS_LENGTH_MAX);
    }
    if (sum == r->elements) return PEN_OK;
    return why_set(why, PEN_CORRUPT, "%u rows have %" PRIu64 " values, the message has %u", r->n,
                   sum, r->elements);
}

pen_status rows_read(const void *data, size_t size, rows_form form, uint32_t dim, size_t width,
                     rows *r, pen_error *why)
{
    uint32_t head[2];
    if (size < sizeof head)
        return why_set(why, PEN_CORRUPT, "rows of a table have %zu bytes; %zu are the least", size,
                       sizeof head);
    memcpy(head, data, sizeof head);
    if (rows_bytes(form, head[0], head[1], dim, width) != size)
        return why_set(why, PEN_CORRUPT, "%u rows with %u values do not have %zu bytes", head[0],
                       head[1], size);
    *r = look(data, form, head[0], head[1], dim);
    for (uint32_t i = 1; r->key != NULL && i < r->n; i++)
        if (rows_key(r, i - 1) >= rows_key(r, i))
            return why_set(why, PEN_CORRUPT, "key %" PRIu64 " comes after %" PRIu64 "; keys ascend",
                           rows_key(r, i), rows_key(r, i - 1));
    return form != ROWS_ASKED ? check_lengths(r, dim, why) : PEN_OK;
}

pen_status rows_read_call(const void *data, size_t size, uint32_t dim, size_t width, rows_call *c,
                          rows *r, pen_error *why)
{
    if (size < sizeof *c)
        return why_set(why, PEN_CORRUPT, "a request to a handler has %zu bytes; %zu are the least",
                       size, sizeof *c);
    memcpy(c, data, sizeof *c);
    if (c->verbs < ROWS_PUSHES || c->verbs > (ROWS_PUSHES | ROWS_PULLS) || c->zero != 0)
        return why_set(why, PEN_CORRUPT, "a request to a handler neither pushes nor pulls");
    return rows_read((const uint8_t *)data + sizeof *c, size - sizeof *c,
                     c->verbs & ROWS_PUSHES ? ROWS_PUSHED : ROWS_ASKED, dim, width, r, why);
}

/* What a handler refused with. */
static pen_status read_refusal(const uint8_t *text, size_t size, const rows_reply *head,
                               bool *is_bad, pen_error *why)
{
    char said[ROWS_TEXT_MAX + 1];
    const pen_status status = (pen_status)head->status;
    *is_bad = !why_is_failure(status) || head->text > ROWS_TEXT_MAX || size != padded(head->text);
    if (!*is_bad) {
        memcpy(said, text, head->text);
        said[head->text] = '\0';
        *is_bad          = strlen(said) != head->text || !utf8_is_clean(said);
    }
    return *is_bad ? why_set(why, PEN_CORRUPT, "a refusal of a handler is damaged")
                   : why_set(why, status, "%s", said);
}

pen_status rows_read_reply(const void *data, size_t size, bool pulls, uint32_t dim, size_t width,
                           rows *r, bool *is_bad, pen_error *why)
{
    rows_reply head;
    *is_bad = size < sizeof head;
    if (*is_bad) return why_set(why, PEN_CORRUPT, "an answer of a handler has %zu bytes", size);
    memcpy(&head, data, sizeof head);
    const uint8_t *rest = (const uint8_t *)data + sizeof head;
    size -= sizeof head;
    if (head.status != PEN_OK) return read_refusal(rest, size, &head, is_bad, why);
    const pen_status status =
        pulls       ? rows_read(rest, size, ROWS_ANSWERED, dim, width, r, why)
        : size == 0 ? PEN_OK
                    : why_set(why, PEN_CORRUPT, "a push was answered with %zu bytes", size);
    *is_bad = status != PEN_OK || head.text != 0;
    return status;
}

pen_status slots_read(const void *data, size_t size, uint32_t arrays, uint64_t count, slots_call *c,
                      pen_error *why)
{
    if (size < sizeof *c)
        return why_set(why, PEN_INVALID_ARGUMENT, "a question about slots of %zu bytes", size);
    memcpy(c, data, sizeof *c);
    const uint64_t behind = c->what == SLOTS_SET ? count * sizeof(float) : 0;
    if (c->what >= SLOTS_READ && c->what <= SLOTS_COUNT && c->zero == 0 && c->array < arrays &&
        c->applied >= 0 && size - sizeof *c == behind)
        return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "a question about array %u of %u, with %zu bytes, does not fit the chunk",
                   c->array, arrays, size - sizeof *c);
}
