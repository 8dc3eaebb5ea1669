/* stream_order.c - calls that end when they are enqueued: stream_order MEMBERS hostflag|stream|spin|nccl [DEVICES]
 *
 * Each round is a chain of collectives and local folds on one stream, without a wait of the host: all_reduce, a fold,
 * reduce_scatter into unequal parts, a fold of the own part, all_gather, broadcast.  Rounds change between two streams,
 * and between buffers small enough for the pools and larger ones.  The host computes the same with reduce(); the results
 * at the end are compared bit for bit.  nccl: 2 members, whose sums have the same bits in every order. */
#include "members.h"
#include "worker/collective/device/device_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 12, N_MAX = 40000, SMALL = 700 };

static float *seed[MEMBERS_MAX], *v[MEMBERS_MAX],
    *sum;                              /* host: of all members; what becomes of them */
static float *x, *y, *part, *original; /* device, of this member */
static size_t counts[MEMBERS_MAX];
static device_stream streams[2];
static device_event *passed;

static bool failed(pen_status status, const pen_error *why)
{
    if (status != PEN_OK) fprintf(stderr, "%s\n", why->text);
    return status != PEN_OK;
}

static bool make_memory(const member *self)
{
    const size_t bytes = N_MAX * sizeof(float);
    for (int r = 0; r < self->size; r++) {
        seed[r] = malloc(bytes);
        v[r]    = malloc(bytes);
        if (seed[r] == NULL || v[r] == NULL) return false;
        for (size_t i = 0; i < N_MAX; i++)
            seed[r][i] = (float)(((int)i * 37 + r * 11) % 101 - 50) / 16;
    }
    sum      = malloc(bytes);
    x        = device_cuda.alloc(bytes, self->device, NULL);
    y        = device_cuda.alloc(bytes, self->device, NULL);
    part     = device_cuda.alloc(bytes, self->device, NULL);
    original = device_cuda.alloc(bytes, self->device, NULL);
    passed   = device_cuda.event_new();
    return sum != NULL && x != NULL && y != NULL && part != NULL && original != NULL &&
           passed != NULL && device_cuda.stream_new(self->device, &streams[0], NULL) == PEN_OK &&
           device_cuda.stream_new(self->device, &streams[1], NULL) == PEN_OK &&
           members_copy(original, seed[self->rank], bytes);
}

static void set_counts(int size, size_t n)
{
    size_t rest = n;
    for (int r = 0; r < size; r++) {
        counts[r] = r == size - 1 ? rest : n / (size_t)size - (size_t)(r % 3);
        rest -= counts[r];
    }
}

/* to = from / 2 + add / 4 (NULL: nothing is added): the same arguments for host and device. */
static reduce_args sum_args(const void **operands, void **result, const double *scale, int n)
{
    return (reduce_args){.op    = PEN_SUM,
                         .dtype = PEN_F32,
                         .n_in  = n,
                         .n_out = 1,
                         .in    = operands,
                         .out   = result,
                         .scale = scale};
}

static const double halves[MEMBERS_MAX] = {0.5, 0.25, 1, 1, 1, 1, 1, 1};

static bool fold(float *to, const float *from, const float *add, size_t n, device_stream stream)
{
    pen_error why;
    const void *operands[2] = {from, add};
    void *result            = to;
    const reduce_args args  = sum_args(operands, &result, halves, add != NULL ? 2 : 1);
    return !failed(device_cuda.reduce(&args, 0, n, stream, &why), &why);
}

static void fold_on_host(float *to, const float *from, const float *add, size_t n)
{
    const void *operands[2] = {from, add};
    void *result            = to;
    const reduce_args args  = sum_args(operands, &result, halves, add != NULL ? 2 : 1);
    reduce(&args, 0, n);
}

static bool call(device_team *team, coll_call c, coll_kind kind, const void *from, void *to,
                 size_t n, int root, uint64_t *seq)
{
    c.kind            = kind;
    c.in              = from;
    c.out             = to;
    c.n               = n;
    c.root            = root;
    c.dtype           = PEN_F32;
    c.op              = PEN_SUM;
    c.scale           = 1;
    c.label           = "order";
    c.in_stream_order = true;
    if (kind == COLL_ALL_REDUCE || kind == COLL_BROADCAST) c.counts = NULL;
    return members_call(team, &c, ++*seq);
}

/* One round on the host, for all members. */
static void expect(int size, int root, size_t n)
{
    const void *operands[MEMBERS_MAX];
    void *result           = sum;
    const reduce_args args = sum_args(operands, &result, NULL, size);
    for (int r = 0; r < size; r++) operands[r] = v[r];
    reduce(&args, 0, n);
    for (int r = 0; r < size; r++) fold_on_host(v[r], sum, v[r], n);
    reduce(&args, 0, n);
    fold_on_host(sum, sum, NULL, n);
    fold_on_host(v[root], sum, seed[root], n);
    memcpy(sum, v[root], n * sizeof(float));
    for (int r = 0; r < size; r++) fold_on_host(v[r], sum, seed[r], n);
}

/* The same on the device, for this member. */
static bool enqueue_round(const member *self, device_team *team, int round, size_t n, uint64_t *seq)
{
    const device_stream stream = streams[round / 2 % 2];
    const int root             = round % self->size;
    const size_t own           = counts[self->rank];
    coll_call c                = {.counts = counts, .stream = stream};
    pen_error why;
    if (failed(device_cuda.stream_wait(stream, passed, &why), &why)) return false;
    return call(team, c, COLL_ALL_REDUCE, x, y, n, root, seq) && fold(x, y, x, n, stream) &&
           call(team, c, COLL_REDUCE_SCATTER, x, part, own, root, seq) &&
           fold(part, part, NULL, own, stream) &&
           call(team, c, COLL_ALL_GATHER, part, y, own, root, seq) &&
           fold(x, y, original, n, stream) && call(team, c, COLL_BROADCAST, x, x, n, root, seq) &&
           fold(x, x, original, n, stream) &&
           !failed(device_cuda.event_record(passed, stream, &why), &why);
}

static bool check(const member *self, size_t n)
{
    if (!members_wait(passed) || !members_copy(sum, x, n * sizeof(float))) return false;
    if (memcmp(sum, v[self->rank], n * sizeof(float)) == 0) return true;
    for (size_t i = 0; i < n; i++)
        if (sum[i] != v[self->rank][i]) {
            printf("member %d of %d: element %zu of %zu is %g, not %g\n", self->rank, self->size, i,
                   n, (double)sum[i], (double)v[self->rank][i]);
            break;
        }
    return false;
}

/* All rounds are enqueued before the host waits for the first. */
static bool run_chain(member *self, device_team *team, size_t n, uint64_t *seq)
{
    pen_error why;
    set_counts(self->size, n);
    for (int r = 0; r < self->size; r++) memcpy(v[r], seed[r], n * sizeof(float));
    if (failed(device_cuda.copy(x, original, n * sizeof(float), streams[0], &why), &why) ||
        failed(device_cuda.event_record(passed, streams[0], &why), &why))
        return false;
    for (int round = 0; round < ROUNDS; round++) {
        expect(self->size, round % self->size, n);
        if (!enqueue_round(self, team, round, n, seq)) return false;
    }
    return check(self, n);
}

static int run(member *self, const void *arg)
{
    uint64_t seq      = 0;
    device_team *team = members_team(self, 10, *(const device_sync_choice *)arg, SMALL * 4);
    if (team == NULL || !make_memory(self)) return 1;
    if (!run_chain(self, team, SMALL, &seq) || !run_chain(self, team, N_MAX, &seq) ||
        !run_chain(self, team, SMALL, &seq))
        return 1;
    if (!enqueue_round(self, team, 0, N_MAX / 2, &seq) ||
        !enqueue_round(self, team, 0, SMALL, &seq))
        return 1;
    device_team_destroy(team); /* with the last calls still enqueued */
    if (!members_wait(passed)) return 1;
    members_meet(self);
    if (self->rank == 0) printf("%llu calls in stream order right\n", (unsigned long long)seq);
    return 0;
}

int main(int argc, char **argv)
{
    const int size          = argc > 1 ? atoi(argv[1]) : 2;
    device_sync_choice sync = members_sync(argc > 2 ? argv[2] : "");
    if (argc > 3) members_devices = atoi(argv[3]);
    if (sync == DEVICE_SYNC_NCCL && size != 2) return 2;
    if (size < 1 || size > MEMBERS_MAX || members_devices < 1) return 2;
    return members_run(size, 110, run, &sync);
}
