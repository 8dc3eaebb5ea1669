/* fuzz_wire_peer.c - any message on the peer plane is refused, or means the same when it is sent on. */
#include "proto/wire/wire_peer.h"
#include "tests/fuzz/fuzz.h"

static wire_arena *arenas[2]; /* one for the message that came, one for the message sent on */
static wire_out sent, again;

static void check_promises(const wire_peer *p)
{
    FUZZ_CHECK(p->kind >= WIRE_SHOW && p->kind < WIRE_PEER_END);
    FUZZ_CHECK(p->rank >= 0 && p->rank < WIRE_ITEMS_MAX && p->lane < WIRE_LANES_MAX);
    FUZZ_CHECK(p->payload_bytes <= WIRE_PAYLOAD_BYTES_MAX && p->dtype <= PEN_F8E5M2);
    FUZZ_CHECK(strlen(p->label) < WIRE_LABEL_MAX);
    if (p->kind == WIRE_PART || p->kind == WIRE_SECTION)
        FUZZ_CHECK(p->payload_bytes <= p->total && p->offset <= p->total - p->payload_bytes);
    if (p->kind == WIRE_SHOW) FUZZ_CHECK(p->has_show);
    if (!p->has_show) return;
    FUZZ_CHECK(p->show.kind < WIRE_SHOW_KINDS && p->show.op <= PEN_BXOR);
    FUZZ_CHECK(p->show.root >= 0 && strlen(p->show.label) < WIRE_LABEL_MAX);
}

static void decode_and_send_on(const uint8_t *head, size_t size, wire_arena *arena)
{
    wire_peer p, back;
    pen_error why;
    wire_arena_reset(arena);
    pen_status status = wire_peer_decode(head, size, arena, &p, &why);
    FUZZ_CHECK(status == PEN_OK || status == PEN_CORRUPT || status == PEN_NO_MEMORY);
    FUZZ_CHECK(status == PEN_OK || (why.status == status && why.text[0] != '\0'));
    if (status != PEN_OK) return;
    check_promises(&p);
    FUZZ_CHECK(wire_peer_encode(&p, &sent, &why) == PEN_OK);
    wire_arena_reset(arenas[1]);
    FUZZ_CHECK(wire_peer_decode(sent.data, sent.size, arenas[1], &back, &why) == PEN_OK);
    check_promises(&back);
    FUZZ_CHECK(wire_peer_encode(&back, &again, &why) == PEN_OK);
    FUZZ_CHECK(sent.size == again.size && memcmp(sent.data, again.data, sent.size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int i = 0; i < 2; i++)
        if (arenas[i] == NULL) arenas[i] = wire_arena_create(8 << 20);
    FUZZ_CHECK(arenas[0] != NULL && arenas[1] != NULL);
    decode_and_send_on(data, size, arenas[0]);

    /* Again behind a valid prefix, with as much memory as is needed and with less. */
    uint8_t *head = fuzz_seal(data, size, 3);
    if (head == NULL) return 0;
    decode_and_send_on(head, size, arenas[0]);
    wire_arena *small = wire_arena_create(data[0] * 16u);
    FUZZ_CHECK(small != NULL);
    decode_and_send_on(head, size, small);
    wire_arena_destroy(small);
    free(head);
    return 0;
}
