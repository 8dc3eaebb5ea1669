/* collectives.c - every collective, every type: collectives MEMBERS hostflag|stream|spin|nccl [DEVICES [SHARE]]
 *
 * Members are spread over DEVICES devices (1). spin is refused if two members share one: a kernel
 * that waits for another on the same device may wait forever. SHARE: only one in SHARE calls.
 * Inputs are random and known to all, so every member computes the expected result with the host's
 * reduce(), and compares bit for bit.  nccl: float sums of large calls are in the order of the fake
 * NCCL, the last member first, so that the bits show who carried them; a real NCCL has another. */
#include "members.h"
#include "worker/collective/device/device_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N_MAX = 70000, BYTES = N_MAX * 8 * MEMBERS_MAX };

static const size_t width[] = {
    [PEN_F32] = 4, [PEN_F16] = 2, [PEN_BF16] = 2, [PEN_F64] = 8, [PEN_I8] = 1,
    [PEN_U8] = 1,  [PEN_I32] = 4, [PEN_U32] = 4,  [PEN_I64] = 8, [PEN_U64] = 8};

static char *inputs[MEMBERS_MAX], *want, *got; /* host */
static char *in, *out;                         /* device */
static device_stream own_stream;               /* not synchronised with the default stream */

static bool make_memory(const member *self)
{
    for (int r = 0; r < self->size; r++) {
        inputs[r] = calloc(1, BYTES);
        if (inputs[r] == NULL) return false;
    }
    want = malloc(BYTES);
    got  = malloc(BYTES);
    in   = device_cuda.alloc(BYTES, self->device, NULL);
    out  = device_cuda.alloc(BYTES, self->device, NULL);
    return want != NULL && got != NULL && in != NULL && out != NULL &&
           device_cuda.stream_new(self->device, &own_stream, NULL) == PEN_OK;
}

/* Numbers of moderate size, so that no type produces infinities or NaN. */
static void draw(int size, pen_dtype dtype, unsigned seed)
{
    members_seed(seed);
    for (int r = 0; r < size; r++) {
        for (size_t i = 0; i < N_MAX * (size_t)MEMBERS_MAX / 8; i++) {
            const float f  = (float)(members_random() % 4001 - 2000) / 128;
            const double d = f;
            uint32_t bits;
            memcpy(&bits, &f, sizeof bits);
            const uint16_t half = dtype == PEN_F16
                                      ? (uint16_t)(0x3000 | (members_random() & 0x8fff))
                                      : (uint16_t)(bits >> 16);
            const int any       = members_random();
            char *at            = inputs[r] + i * width[dtype];
            if (dtype == PEN_F32)
                memcpy(at, &f, 4);
            else if (dtype == PEN_F64)
                memcpy(at, &d, 8);
            else if (width[dtype] == 2)
                memcpy(at, &half, 2);
            else
                memcpy(at, &any, width[dtype] < 4 ? width[dtype] : 4);
        }
    }
}

static void take(int from, size_t first, size_t to, size_t n, size_t w)
{
    memcpy(want + to * w, inputs[from] + first * w, n * w);
}

static bool with_nccl;
static size_t one_shot_bytes; /* it carries larger calls, if they fit it */

static bool is_reversed(const coll_call *c, int size)
{
    const size_t parts = c->kind == COLL_REDUCE_SCATTER ? (size_t)size : 1;
    return with_nccl && c->n * parts * width[c->dtype] > one_shot_bytes &&
           nccl_fits(c->op, c->dtype, false);
}

static void fold(const coll_call *c, int size, size_t first, size_t n)
{
    const void *operands[MEMBERS_MAX];
    void *result = want;
    for (int r = 0; r < size; r++)
        operands[r] = inputs[is_reversed(c, size) ? size - 1 - r : r] + first * width[c->dtype];
    const reduce_args args = {
        .op = c->op, .dtype = c->dtype, .n_in = size, .n_out = 1, .in = operands, .out = &result};
    reduce(&args, 0, n);
}

/* Computes the expected result of this member into `want`. */
static void expect(const coll_call *c, int size, int rank)
{
    const size_t w = width[c->dtype], n = c->n;
    switch (c->kind) {
    case COLL_BROADCAST: take(c->root, 0, 0, n, w); break;
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: fold(c, size, 0, n); break;
    case COLL_REDUCE_SCATTER: fold(c, size, (size_t)rank * n, n); break;
    case COLL_SCATTER: take(c->root, (size_t)rank * n, 0, n, w); break;
    default:
        for (int r = 0; r < size; r++)
            take(r, c->kind == COLL_ALL_TO_ALL ? (size_t)rank * n : 0, (size_t)r * n, n, w);
    }
}

static bool check(const coll_call *c, const member *self)
{
    const size_t bytes = coll_out_elements(c, self->size, self->rank) * width[c->dtype];
    if (bytes == 0) return true;
    expect(c, self->size, self->rank);
    if (!members_copy(got, c->out, bytes)) return false;
    if (memcmp(got, want, bytes) == 0) return true;
    printf("%s of %zu, type %d, %s: member %d of %d got something else\n", coll_kind_name(c->kind),
           c->n, c->dtype, coll_op_name(c->op), self->rank, self->size);
    return false;
}

static int share = 1;

static bool is_chosen(void)
{
    static int calls;
    return calls++ % share == 0;
}

static bool try_one(member *self, device_team *team, coll_call *c, uint64_t seq, size_t skew,
                    bool in_place)
{
    const size_t bytes = coll_in_elements(c, self->size, self->rank) * width[c->dtype];
    c->in              = in + skew;
    c->out             = in_place || c->kind == COLL_BROADCAST ? in + skew : out + skew;
    c->stream = seq % 2 == 0 ? own_stream : NULL; /* results are read on the default stream */
    c->scale  = 1;
    c->label  = "gpu";
    if (bytes > 0 && !members_copy(in + skew, inputs[self->rank], bytes)) return false;
    return members_call(team, c, seq) && check(c, self);
}

static bool every_type(member *self, device_team *team, coll_kind kind, uint64_t *seq)
{
    static const size_t sizes[] = {1, 1021, N_MAX / 8};
    for (int dtype = PEN_F32; dtype <= PEN_U64; dtype++) {
        draw(self->size, (pen_dtype)dtype, (unsigned)(dtype * 100 + (int)kind));
        for (int op = 0; op <= PEN_BXOR; op++) {
            if (!reduce_is_legal((pen_op)op, (pen_dtype)dtype) || (op > 0 && !coll_reduces(kind)))
                continue;
            for (int s = 0; s < 3; s++) {
                if (!is_chosen()) continue; /* all members choose alike */
                const bool in_place = s == 1 && (kind == COLL_REDUCE || kind == COLL_ALL_REDUCE);
                coll_call c         = {.kind  = kind,
                                       .op    = (pen_op)op,
                                       .dtype = (pen_dtype)dtype,
                                       .n     = sizes[s],
                                       .root  = s % self->size};
                if (!try_one(self, team, &c, ++*seq, s == 1 ? width[dtype] : 0, in_place))
                    return false;
            }
        }
    }
    return true;
}

static bool uneven_inputs(const member *self, coll_call *c, size_t all, uint64_t seq)
{
    const size_t n = c->kind == COLL_REDUCE_SCATTER ? all : c->counts[self->rank];
    c->in          = in;
    c->out         = out;
    c->stream      = seq % 2 == 0 ? own_stream : NULL;
    c->scale       = 1;
    c->label       = "uneven";
    return n == 0 || members_copy(in, inputs[self->rank], n * width[c->dtype]);
}

/* Part r has n + r elements; member 1 of three or more has none. */
static bool uneven(member *self, device_team *team, coll_kind kind, uint64_t *seq)
{
    size_t counts[MEMBERS_MAX], all = 0, before = 0;
    coll_call c = {.kind = kind, .op = PEN_SUM, .dtype = PEN_I32, .counts = counts};
    for (int r = 0; r < self->size; r++) {
        counts[r] = r == 1 && self->size > 2 ? 0 : N_MAX / 8 + (size_t)r;
        all += counts[r];
    }
    draw(self->size, c.dtype, (unsigned)kind + 7);
    for (int r = 0; r < self->rank; r++) before += counts[r];
    c.n = counts[self->rank];
    if (!uneven_inputs(self, &c, all, ++*seq) || !members_call(team, &c, *seq)) return false;
    c.counts = NULL;
    if (kind == COLL_REDUCE_SCATTER) {
        fold(&c, self->size, before, counts[self->rank]);
        all = counts[self->rank];
    } else {
        for (int r = 0, to = 0; r < self->size; to += (int)counts[r++])
            take(r, 0, (size_t)to, counts[r], 4);
    }
    if (members_copy(got, c.out, all * 4) && memcmp(got, want, all * 4) == 0) return true;
    printf("%s with uneven parts: member %d got something else\n", coll_kind_name(kind),
           self->rank);
    return false;
}

static int run(member *self, const void *arg)
{
    const device_sync_choice sync = *(const device_sync_choice *)arg;
    with_nccl                     = sync == DEVICE_SYNC_NCCL;
    if (!make_memory(self)) return 1;
    for (uint64_t way = 0; way < 2;
         way++) { /* everything through mapped memory; then small calls through the pools */
        uint64_t seq      = 0;
        one_shot_bytes    = way == 0 ? 1 : 64 << 10;
        device_team *team = members_team(self, 10 + way, sync, one_shot_bytes);
        if (team == NULL) return 1;
        for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
            if (!every_type(self, team, (coll_kind)kind, &seq)) return 1;
        if (!uneven(self, team, COLL_ALL_GATHER, &seq) ||
            !uneven(self, team, COLL_REDUCE_SCATTER, &seq))
            return 1;
        if (self->rank == 0)
            printf("%llu calls right; %s\n", (unsigned long long)seq, device_team_text(team));
        members_meet(self);
        device_team_destroy(team);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const int size          = argc > 1 ? atoi(argv[1]) : 2;
    device_sync_choice sync = members_sync(argc > 2 ? argv[2] : "");
    if (argc > 3) members_devices = atoi(argv[3]);
    if (argc > 4) share = atoi(argv[4]);
    if (size < 1 || size > MEMBERS_MAX || members_devices < 1 || share < 1) return 2;
    return members_run(size, 280, run, &sync);
}
