/* fuzz_wire_data.c - any message on the data plane is refused, or means the same when it is sent on. */
#include "common/base/crc.h"
#include "proto/wire/wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/wire_difference.h"

static wire_arena *arenas[2]; /* one for the message that came, one for the message sent on */
static wire_out sent, again;

static void check_promises(const wire_data *d)
{
    FUZZ_CHECK(d->text != NULL);
    FUZZ_CHECK(wire_is_data_kind((int)d->kind));
    FUZZ_CHECK(d->payload_bytes <= WIRE_PAYLOAD_BYTES_MAX && d->n <= WIRE_ITEMS_MAX);
    FUZZ_CHECK(pen_status_info(d->status)->status == d->status);
    uint64_t sum = 0; /* every column is read to its end */
    for (uint32_t i = 0; i < d->n; i++) {
        sum += d->chunk[i];
        sum += d->seq != NULL ? d->seq[i] : 0;
        sum += d->crc != NULL ? d->crc[i] : 0;
        sum += d->version != NULL ? d->version[i] : 0;
        sum += d->staleness != NULL ? d->staleness[i] : 0;
        sum += d->size != NULL ? d->size[i] : 0;
    }
    for (uint32_t i = 0; i < d->n_partitions; i++)
        sum += d->partition[i] + (d->vote_hash != NULL ? d->vote_hash[i] : 0);
    for (uint32_t i = 0; i < d->n_missing; i++) sum += (uint32_t)d->missing[i];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->n_entries; i++) {
        bytes += d->entry[i].bytes;
        for (uint32_t j = 0; j < d->entry[i].n_numbers; j++) sum += d->entry[i].number[j];
    }
    FUZZ_CHECK(d->n_entries == 0 || bytes == d->payload_bytes);
    fuzz_sink = sum;
}

static void decode_and_send_on(const uint8_t *head, size_t size, wire_arena *arena)
{
    wire_data d, back;
    pen_error why;
    wire_arena_reset(arena);
    pen_status status = wire_data_decode(head, size, arena, &d, &why);
    FUZZ_CHECK(status == PEN_OK || status == PEN_CORRUPT || status == PEN_NO_MEMORY);
    FUZZ_CHECK(status == PEN_OK || (why.status == status && why.text[0] != '\0'));
    if (status != PEN_OK) return;
    check_promises(&d);
    FUZZ_CHECK(wire_data_encode(&d, &sent, &why) == PEN_OK);
    wire_arena_reset(arenas[1]);
    FUZZ_CHECK(wire_data_decode(sent.data, sent.size, arenas[1], &back, &why) == PEN_OK);
    check_promises(&back);
    FUZZ_CHECK(wire_difference_data(&d, &back) == NULL);
    FUZZ_CHECK(wire_data_encode(&back, &again, &why) == PEN_OK);
    FUZZ_CHECK(sent.size == again.size && memcmp(sent.data, again.data, sent.size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int i = 0; i < 2; i++)
        if (arenas[i] == NULL) arenas[i] = wire_arena_create(8 << 20);
    FUZZ_CHECK(arenas[0] != NULL && arenas[1] != NULL);
    decode_and_send_on(data, size, arenas[0]);

    /* Again behind a valid prefix, with as much memory as is needed and with less. */
    uint8_t *head = fuzz_seal(data, size, 2);
    if (head == NULL) return 0;
    decode_and_send_on(head, size, arenas[0]);
    wire_arena *small = wire_arena_create(data[0] * 16u);
    FUZZ_CHECK(small != NULL);
    decode_and_send_on(head, size, small);
    wire_arena_destroy(small);
    free(head);
    return 0;
}
