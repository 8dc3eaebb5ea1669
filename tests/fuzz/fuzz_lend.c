/* fuzz_lend.c - for any messages of peers about lent bodies: what the owner gets lies inside of lent memory, a
 * stranger lends nothing and receives nothing, and no body is released before its reader has returned it.
 *
 * The input is a list of actions of 80 bytes: what, who (0: a stranger, 1 and 2: members), which fields of the head
 * are true instead of those that follow, and 64 bytes of fields. */
#include "common/net/transport/lend.h"
#include "common/system/segment.h"
#include "tests/fuzz/fuzz.h"

#include <unistd.h>

enum { ACTION_BYTES = 80, FIELDS_BYTES = 64, PEERS = 3, HELD = 8, BODY_BYTES = LEND_BYTES_MIN };
enum { PROBE = 1, MAPPED, LENT, RETURN };
enum {
    TRUE_ID     = 1,
    TRUE_SIZE   = 2,
    TRUE_OFFSET = 4,
    TRUE_CLOSED = 8,
    TRUE_PID    = 16,
    TRUE_FD     = 32,
    TRUE_NUMBER = 64
};

typedef struct {
    char mark[8];
    uint32_t kind, n;
} preface;

typedef struct {
    preface p;
    uint64_t number;
    segment_ref place;
} question; /* PROBE and MAPPED */

typedef struct {
    preface p;
    uint64_t token, bytes;
    segment_ref place;
    char head[8];
} lent_message;

typedef union {
    preface p;
    question q;
    lent_message lent;
    uint64_t token[FIELDS_BYTES / 8 + 2];
} message;

/* What this layer has sent to each peer, as that peer would know it. */
static struct {
    uint64_t secret, token;
    bool has_token;
} known[PEERS];
static message next;
static size_t next_size;
static uint32_t next_peer;
static transport_event_kind next_kind;
static int bodies;      /* lent or sent, and not released */
static uint8_t *memory; /* of the peers: the first words are a proof */

static pen_status fake_send(void *state, uint32_t peer, const void *head, size_t size, buf *body)
{
    (void)state;
    message m = {0};
    void *at;
    FUZZ_CHECK(peer < PEERS && size <= sizeof m);
    memcpy(&m, head, size);
    FUZZ_CHECK(peer != 0 || memcmp(m.p.mark, "\0PenLend", 8) != 0);
    if (m.p.kind == PROBE && size == sizeof m.q) {
        FUZZ_CHECK(segment_map(&m.q.place, 16, &at, NULL) == PEN_OK);
        memcpy(&known[peer].secret, (uint8_t *)at + 8, 8);
        segment_unmap(&m.q.place);
    }
    if (m.p.kind == LENT) {
        known[peer].token     = m.lent.token;
        known[peer].has_token = true;
    }
    buf_release(body);
    return PEN_OK;
}

static pen_status fake_recv(void *state, transport_event *event)
{
    (void)state;
    if (next_size == 0) return PEN_AGAIN;
    *event = (transport_event){.kind = next_kind, .peer = next_peer};
    if (next_kind == TRANSPORT_MESSAGE) {
        event->head      = &next;
        event->head_size = next_size;
    }
    next_size = 0;
    return PEN_OK;
}

static const transport_ops fake = {.send = fake_send, .recv = fake_recv};

static void released(void *user)
{
    (void)user;
    bodies--;
}

/* A message about lent bodies; each field is the input's or the true one. */
static void say(uint32_t kind, uint32_t peer, uint8_t truth, uint8_t length, const uint8_t *fields)
{
    segment_ref place, real;
    next      = (message){.p = {.mark = "\0PenLend", .kind = kind, .n = fields[0] % 9}};
    next_kind = TRANSPORT_MESSAGE;
    next_peer = peer;
    memcpy(next.token + 2, fields, FIELDS_BYTES);
    FUZZ_CHECK(segment_find(memory, BODY_BYTES, &real));
    segment_ref *at = kind == LENT ? &next.lent.place : &next.q.place;
    memcpy(&place, at, sizeof place);
    if (truth & TRUE_ID) place.id = real.id;
    if (truth & TRUE_SIZE) place.size = real.size;
    if (truth & TRUE_OFFSET) place.offset = real.offset;
    if (truth & TRUE_CLOSED) place.closed = real.closed;
    if (truth & TRUE_PID) place.pid = real.pid;
    if (truth & TRUE_FD) place.fd = real.fd;
    if (kind == PROBE || kind == MAPPED || kind == LENT) memcpy(at, &place, sizeof place);
    if (truth & TRUE_NUMBER) {
        uint64_t number = 77; /* shown by the proof */
        if (kind == MAPPED) number = known[peer].secret;
        if (kind == RETURN) number = known[peer].token;
        if (kind == MAPPED) memcpy(memory + 16, &number, 8);
        if (kind == LENT) next.lent.bytes = BODY_BYTES;
        next.q.number = number;
    }
    next_size = kind == LENT     ? sizeof next.lent
                : kind == RETURN ? 16 + 8 * (size_t)next.p.n
                                 : sizeof next.q;
    if (length != 0) next_size = length % sizeof next + 1;
}

static void receive(lend *l, buf *held[HELD], size_t *n)
{
    transport_event event;
    while (lend_recv(l, &event) == PEN_OK) {
        if (event.body == NULL) continue;
        const uint8_t *data = event.body->data;
        FUZZ_CHECK(event.kind == TRANSPORT_MESSAGE && event.peer != 0);
        FUZZ_CHECK(event.body->size <= BODY_BYTES && event.head_size > 0);
        for (size_t i = 0; i < event.body->size; i += 512) fuzz_sink += data[i];
        if (event.body->size > 0) fuzz_sink += data[event.body->size - 1];
        if (held[*n % HELD] != NULL) buf_release(held[*n % HELD]);
        held[(*n)++ % HELD] = event.body;
    }
}

static void lend_one(lend *l, uint32_t peer, uint8_t *own)
{
    buf *body = buf_wrap(own, BODY_BYTES, released, NULL);
    FUZZ_CHECK(body != NULL);
    bodies++;
    known[peer].has_token = false;
    if (lend_send(l, peer, "v", 1, body) != PEN_OK) buf_release(body);
    FUZZ_CHECK(peer != 0 || !known[peer].has_token);
}

static void act(lend *l, const uint8_t *action, uint8_t *own)
{
    const uint32_t peer = action[1] % PEERS, kind = action[0] % 8;
    if (kind >= PROBE && kind <= RETURN)
        say(kind, peer, action[2], action[3], action + 16);
    else if (kind == 5)
        lend_one(l, peer, own);
    else if (kind == 6) {
        next_kind = TRANSPORT_DOWN;
        next_peer = peer;
        next_size = 1;
    } else if (peer != 0)
        lend_admit(l, peer);
}

static void make_memory(void)
{
    static const uint64_t proof[3] = {77, 78, 0};
    if (memory == NULL) memory = segment_alloc_apart(BODY_BYTES, NULL);
    FUZZ_CHECK(memory != NULL);
    memcpy(memory, proof, sizeof proof);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    buf *held[HELD] = {NULL};
    size_t n        = 0;
    make_memory();
    uint8_t *own = segment_alloc(BODY_BYTES, NULL);
    memset(known, 0, sizeof known);
    lend *l = lend_create(&fake, NULL, true, BODY_BYTES);
    FUZZ_CHECK(own != NULL && l != NULL);
    for (; size >= ACTION_BYTES; data += ACTION_BYTES, size -= ACTION_BYTES) {
        act(l, data, own);
        receive(l, held, &n);
        if (data[4] % 4 == 1)
            for (int i = 0; i < HELD; i++) {
                buf_release(held[i]);
                held[i] = NULL;
            }
    }
    lend_destroy(l);
    FUZZ_CHECK(bodies == 0);
    for (int i = 0; i < HELD; i++) buf_release(held[i]);
    FUZZ_CHECK(segment_free(own));
    segment_unmap_all_of((int32_t)getpid());
    return 0;
}
