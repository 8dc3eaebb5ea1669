/* fuzz_node.c - for anything that a member writes into the slots of others, in any order with their calls: all of them read
 * and write only memory of the call, and every call ends.
 *
 * The input is a call of 8 bytes, then actions of 16: a member advances, a word of a slot changes, or a slot names other
 * memory of its member. */
#include "common/system/segment.h"
#include "proto/plan.h"
#include "tests/fuzz/fuzz.h"
#include "worker/collective/shm/node_internal.h"

enum { MEMBERS = 3, GROUP = 9, ACTION_BYTES = 16, LENT_BYTES = 8 << 20 };
enum { ADVANCE, ADVANCE_ALL, WRITE, NAME, ACTIONS };
enum { MAPPED_IN = 1, MAPPED_OUT = 2, IN_PLACE = 4, OVERWRITES = 8, BY_COUNTS = 16 };

typedef struct {
    uint8_t kind, members, n, root, flags[MEMBERS], dtype;
} call_bytes;

typedef struct {
    uint8_t what, who, wide, field;
    uint32_t at;
    uint64_t value;
} action;

_Static_assert(sizeof(call_bytes) == 8 && sizeof(action) == ACTION_BYTES, "as the input has them");

static struct {
    node_place *place;
    node_team *team[MEMBERS + 1]; /* by the number of members */
    void *lent[2];                /* in and out that others can map */
    void *foreign[2];             /* of this call, which they cannot */
    size_t counts[2][MEMBERS];
    coll_call call;
    coll_state state;
    _Alignas(64) unsigned char op[COLL_OP_BYTES];
} member[MEMBERS];

static void meet(void)
{
    const char *address[MEMBERS];
    const int ranks[MEMBERS] = {0, 1, 2};
    pen_error why;
    for (int i = 0; i < MEMBERS; i++) {
        FUZZ_CHECK(node_place_create(&member[i].place, &why) == PEN_OK);
        address[i] = node_place_address(member[i].place);
        for (int k = 0; k < 2; k++)
            FUZZ_CHECK((member[i].lent[k] = segment_alloc(LENT_BYTES, &why)) != NULL);
    }
    for (int n = 2; n <= MEMBERS; n++)
        for (int i = 0; i < n; i++)
            FUZZ_CHECK(node_team_create(member[i].place, GROUP + (uint64_t)n, address, ranks, n, i,
                                        &member[i].team[n], &why) == PEN_OK);
}

/* ---- the call -------------------------------------------------------------------------------- */
/* A block of its own, so that nothing lies behind it. */
static void *buffer(int i, int which, bool is_mapped, size_t bytes)
{
    if (is_mapped) return member[i].lent[which];
    free(member[i].foreign[which]);
    member[i].foreign[which] = calloc(1, bytes > 0 ? bytes : 1);
    FUZZ_CHECK(member[i].foreign[which] != NULL);
    return member[i].foreign[which];
}

static void set_counts(int i, int size, size_t n)
{
    coll_call *c     = &member[i].call;
    const bool apart = c->kind == COLL_ALL_TO_ALL;
    for (int k = 0; k < size; k++) {
        member[i].counts[0][k] = n + (size_t)(apart ? (i + 2 * k) % 3 : k);
        member[i].counts[1][k] = n + (size_t)((k + 2 * i) % 3);
    }
    c->counts     = member[i].counts[0];
    c->out_counts = apart ? member[i].counts[1] : NULL;
}

static void make_call(int i, int size, const call_bytes *b)
{
    static const size_t elements[] = {0, 1, 9, 1000, 9000, 70001, 300003, 2000003};
    static const pen_dtype types[] = {PEN_F32, PEN_F64, PEN_BF16, PEN_U8};
    coll_call *c                   = &member[i].call;
    const pen_dtype dtype          = types[b->dtype % 4];
    const size_t n                 = elements[b->n % 8] / plan_dtype_bytes(dtype);
    const uint8_t flags            = b->flags[i];
    *c                             = (coll_call){.kind       = (coll_kind)(b->kind % COLL_KINDS),
                                                 .dtype      = dtype,
                                                 .op         = PEN_SUM,
                                                 .n          = n,
                                                 .scale      = 1,
                                                 .label      = "x",
                                                 .overwrites = (flags & OVERWRITES) != 0};
    if (c->kind == COLL_BROADCAST || c->kind == COLL_REDUCE || c->kind == COLL_GATHER ||
        c->kind == COLL_SCATTER)
        c->root = b->root % size;
    if (c->kind == COLL_BARRIER) {
        c->dtype = PEN_U8;
        c->n     = 0;
    }
    if (c->kind >= COLL_GATHER && b->flags[0] & BY_COUNTS) set_counts(i, size, n);
    const size_t width = plan_dtype_bytes(c->dtype);
    const size_t in    = coll_in_elements(c, size, i) * width;
    const size_t out   = coll_out_elements(c, size, i) * width;
    c->in              = buffer(i, 0, flags & MAPPED_IN, in);
    c->out             = buffer(i, 1, flags & MAPPED_OUT, out);
    if (c->kind == COLL_BROADCAST) {
        c->in = c->out = buffer(i, 0, flags & MAPPED_IN, n * width);
    } else if (flags & IN_PLACE &&
               (c->kind == COLL_ALL_REDUCE || (c->kind == COLL_REDUCE && i == c->root))) {
        c->in = c->out;
    }
}

/* ---- lies ------------------------------------------------------------------------------------ */
static node_slot *slot_of(int i, int size)
{
    return node_own_slot(member[i].team[size]);
}

/* Counters and the entry of this call, but not the payload. */
static void write_word(node_slot *s, const action *a)
{
    const size_t width = a->wide & 1 ? 8 : 4;
    const size_t room  = offsetof(node_slot, entry[0].payload);
    memcpy((char *)s + a->at % (room / width) * width, &a->value, width);
}

/* Memory of the member that is there, from an offset that may not be. */
static void name_memory(int i, node_slot *s, const action *a)
{
    node_entry *e       = &s->entry[0];
    segment_ref *all[4] = {&e->in, &e->out, &e->window, &e->save};
    segment_ref ref;
    FUZZ_CHECK(segment_find(member[i].lent[a->field >> 2 & 1], LENT_BYTES, &ref));
    ref.offset += a->value % (2 * LENT_BYTES);
    *all[a->field & 3] = ref;
}

static void advance(int i)
{
    pen_error why;
    if (member[i].state == COLL_RUNNING)
        member[i].state = coll_path_node.advance(member[i].op, &why);
}

static void act(const action *a, int size)
{
    const int who = a->who % size;
    switch (a->what % ACTIONS) {
    case ADVANCE: advance(who); break;
    case ADVANCE_ALL:
        for (int i = 0; i < size; i++) advance(i);
        break;
    case WRITE: write_word(slot_of(who, size), a); break;
    case NAME: name_memory(who, slot_of(who, size), a); break;
    }
}

/* ---- one input ------------------------------------------------------------------------------- */
static void clear(node_slot *s)
{
    s->ended = s->revoked = s->busy = 0;
    s->filled = s->worked = s->taken = s->saved = 0;
    s->entry[0].arrived                         = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t seq; /* even: of entry[0] */
    call_bytes b;
    pen_error why;
    if (size < sizeof b) return 0;
    memcpy(&b, data, sizeof b);
    if (seq == 0) meet();
    seq += 2;
    const int n = 2 + b.members % (MEMBERS - 1);
    for (int i = 0; i < n; i++) {
        clear(slot_of(i, n));
        make_call(i, n, &b);
        memset(member[i].op, 0, sizeof member[i].op);
    }
    for (int i = 0; i < n; i++)
        member[i].state = coll_path_node.start(member[i].team[n], member[i].op, &member[i].call,
                                               seq, &why) == PEN_OK
                              ? COLL_RUNNING
                              : COLL_FAILED;
    for (size_t at = sizeof b; at + ACTION_BYTES <= size; at += ACTION_BYTES) {
        action a;
        memcpy(&a, data + at, sizeof a);
        act(&a, n);
    }
    for (int i = 0; i < n; i++) slot_of(i, n)->busy = 0; /* nobody is at work between two actions */
    for (int i = 0; i < n; i++) {
        if (member[i].state == COLL_RUNNING) coll_path_node.abort(member[i].op);
        FUZZ_CHECK(((node_op *)(void *)member[i].op)->stage == NODE_OVER);
    }
    return 0;
}
