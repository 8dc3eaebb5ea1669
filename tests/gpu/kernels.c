/* kernels.c - the kernels against the host code: every type, operation and layout, bit for bit;
 * NaNs may differ in their payload. Also the other work of a device for one process: streams,
 * pinned memory.
 *   kernels WHAT [SHARE]     of folds and sums: one in SHARE (1) */
#include "members.h"
#include "tests/support/step_suite.h"

#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ARRAY_BYTES = 1 << 20,
    ARRAYS      = 6,
    OUTS        = 2,
    TRIALS      = 4000,
    SUM_BYTES   = 1 << 17,
    SUM_TRIALS  = 1000
};

static int share = 1;

static const size_t width[] = {
    [PEN_F32] = 4, [PEN_F16] = 2, [PEN_BF16] = 2, [PEN_F64] = 8, [PEN_I8] = 1,
    [PEN_U8] = 1,  [PEN_I32] = 4, [PEN_U32] = 4,  [PEN_I64] = 8, [PEN_U64] = 8};

static bool is_nan(pen_dtype dtype, const void *at)
{
    float f;
    double d;
    uint16_t h;
    memcpy(&h, at, sizeof h);
    if (dtype == PEN_F16) return (h & 0x7fff) > 0x7c00;
    if (dtype == PEN_BF16) return (h & 0x7fff) > 0x7f80;
    if (dtype == PEN_F32) return memcpy(&f, at, sizeof f), isnan(f);
    if (dtype == PEN_F64) return memcpy(&d, at, sizeof d), isnan(d);
    return false;
}

typedef struct {
    reduce_args args;
    size_t n, at[ARRAYS + OUTS];
    double scale[ARRAYS];
    const void *host_in[ARRAYS], *device_in[ARRAYS];
    void *host_out[OUTS], *device_out[OUTS];
} trial;

static char *host[ARRAYS + OUTS], *device[ARRAYS + OUTS];

/* Arrays aligned to words, to elements, or not at all; sizes from zero to many blocks. */
static void draw(trial *t)
{
    const pen_dtype dtype = (pen_dtype)(1 + members_random() % 10);
    pen_op op             = (pen_op)(members_random() % 11);
    while (!reduce_is_legal(op, dtype)) op = (pen_op)(members_random() % 5);
    const int lie = members_random() % 4;
    t->args       = (reduce_args){.op    = op,
                                  .dtype = dtype,
                                  .n_in  = 1 + members_random() % ARRAYS,
                                  .n_out = 1 + members_random() % OUTS};
    t->n          = (size_t)members_random() % (members_random() % 8 == 0 ? 100000 : 300);
    for (int i = 0; i < ARRAYS + OUTS; i++) {
        t->at[i] = lie == 0   ? 0
                   : lie == 1 ? 16 - width[dtype]
                   : lie == 2 ? (size_t)(members_random() % 5) * width[dtype]
                              : (size_t)(members_random() % 33);
        if (i < ARRAYS) {
            t->scale[i]     = members_random() % 3 == 0 ? 1 : (members_random() % 200 - 100) / 8.0;
            t->host_in[i]   = host[i] + t->at[i];
            t->device_in[i] = device[i] + t->at[i];
        } else {
            t->host_out[i - ARRAYS]   = host[i] + t->at[i];
            t->device_out[i - ARRAYS] = device[i] + t->at[i];
        }
    }
    t->args.scale     = members_random() % 2 ? t->scale : NULL;
    t->args.divide_by = members_random() % 3 ? 0 : 7;
}

static bool check(const trial *t, char *back)
{
    const pen_dtype dtype = t->args.dtype;
    for (int o = 0; o < t->args.n_out; o++) {
        if (!members_copy(back, t->device_out[o], t->n * width[dtype])) return false;
        for (size_t i = 0; i < t->n; i++) {
            const char *want = (char *)t->host_out[o] + i * width[dtype],
                       *got  = back + i * width[dtype];
            if (memcmp(want, got, width[dtype]) == 0 || (is_nan(dtype, want) && is_nan(dtype, got)))
                continue;
            printf("type %d, operation %d, %d inputs, element %zu of %zu differs\n", dtype,
                   t->args.op, t->args.n_in, i, t->n);
            return false;
        }
    }
    return true;
}

static bool run(trial *t, char *back)
{
    pen_error why = {0};
    t->args.in    = t->host_in;
    t->args.out   = t->host_out;
    reduce(&t->args, 0, t->n);
    t->args.in  = t->device_in;
    t->args.out = t->device_out;
    if (device_cuda.reduce(&t->args, 0, t->n, NULL, &why) == PEN_OK) return check(t, back);
    printf("%s\n", why.text);
    return false;
}

static int fold_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    char *back = malloc(ARRAY_BYTES);
    members_seed(7);
    for (int i = 0; i < ARRAYS + OUTS; i++) {
        host[i]   = aligned_alloc(256, ARRAY_BYTES);
        device[i] = device_cuda.alloc(ARRAY_BYTES, 0, NULL);
        if (device[i] == NULL || host[i] == NULL || back == NULL) return 1;
        for (int k = 0; k < ARRAY_BYTES / 4; k++) {
            const float x  = (float)(members_random() % 2001 - 1000) / 64;
            const int bits = members_random();
            memcpy(host[i] + 4 * (size_t)k, k % 2 ? (const void *)&x : (const void *)&bits, 4);
        }
        if (!members_copy(device[i], host[i], ARRAY_BYTES)) return 1;
    }
    for (int i = 0; i < TRIALS / share; i++) {
        trial t;
        draw(&t);
        if (!run(&t, back)) return 1;
    }
    printf("%d folds are the host's, bit for bit\n", TRIALS / share);
    return 0;
}

static int copy_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    unsigned char *a  = device_cuda.alloc(ARRAY_BYTES, 0, NULL),
                  *b  = device_cuda.alloc(ARRAY_BYTES, 0, NULL);
    unsigned char *in = malloc(ARRAY_BYTES), *out = malloc(ARRAY_BYTES);
    if (a == NULL || b == NULL || in == NULL || out == NULL) return 1;
    for (int i = 0; i < ARRAY_BYTES; i++) in[i] = (unsigned char)members_random();
    if (!members_copy(a, in, ARRAY_BYTES)) return 1;
    for (int i = 0; i < 300; i++) {
        const size_t from = (size_t)(members_random() % 40), to = (size_t)(members_random() % 40),
                     n = (size_t)(members_random() % (i % 10 ? 500 : 900000));
        if (device_cuda.copy(b + to, a + from, n, NULL, NULL) != PEN_OK) return 1;
        if (!members_copy(out, b + to, n) || memcmp(out, in + from, n) != 0) {
            printf("a copy of %zu bytes from %zu to %zu differs\n", n, from, to);
            return 1;
        }
    }
    printf("copies are right\n");
    return 0;
}

/* A wait without flags ends at its deadline or at the abort word; a wait whose flags are set
 * succeeds. */
static int flag_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    char *flags        = device_cuda.alloc(2 * DEVICE_FLAG_BYTES, 0, NULL);
    uint64_t *words    = device_cuda.host_alloc(64, NULL);
    uint32_t *result   = (uint32_t *)(words + 1);
    void *both[]       = {flags, flags + DEVICE_FLAG_BYTES};
    device_flag_wait w = {.flags      = flags,
                          .abort      = words,
                          .result     = result,
                          .value      = 3,
                          .timeout_ns = 50000000,
                          .n          = 2};
    if (flags == NULL || words == NULL) return 1;
    bool ok = device_cuda.flag_wait(&w, NULL, NULL) == PEN_OK && members_drain() &&
              *result == DEVICE_FLAG_LATE;
    *result = DEVICE_FLAG_CAME;
    ok      = ok && device_cuda.flag_set(both, 2, 3, NULL, NULL) == PEN_OK &&
         device_cuda.flag_wait(&w, NULL, NULL) == PEN_OK && members_drain() &&
         *result == DEVICE_FLAG_CAME;
    words[0]     = 1;
    w.value      = 9;
    w.timeout_ns = 20000000000;
    ok           = ok && device_cuda.flag_wait(&w, NULL, NULL) == PEN_OK && members_drain() &&
         *result == DEVICE_FLAG_ABORTED;
    printf(ok ? "every wait ended as it must\n" : "a wait for flags ended with %u\n", *result);
    return ok ? 0 : 1;
}

/* ---- sums ------------------------------------------------------------------------------------------ */

extern const device_ops device_cpu;

typedef struct {
    char *sum, *numbers; /* SUM_BYTES each */
} sum_arrays;

/* Random bits, or numbers of moderate size. */
static void draw_bits(char *to, pen_dtype dtype)
{
    const bool is_tame = members_random() % 2;
    for (int i = 0; i < SUM_BYTES / 4; i++) {
        float x       = (float)(members_random() % 20001 - 10000) / 64;
        uint32_t bits = (uint32_t)members_random() << 1 ^ (uint32_t)members_random();
        if (is_tame && dtype == PEN_F16) bits = (bits & 0x83ff83ff) | 0x38003800;
        if (is_tame && dtype != PEN_F16) memcpy(&bits, &x, sizeof bits);
        memcpy(to + 4 * (size_t)i, &bits, 4);
    }
}

static bool is_alike(pen_dtype dtype, const char *want, const char *got)
{
    for (size_t i = 0; i < SUM_BYTES; i += width[dtype])
        if (memcmp(want + i, got + i, width[dtype]) != 0 &&
            !(is_nan(dtype, want + i) && is_nan(dtype, got + i)))
            return false;
    return true;
}

typedef struct {
    pen_dtype dtype;
    size_t n, sum_at, at; /* bytes */
    int what; /* 0: starts the sum; 1: adds to it; 2: rounds it; 3: sets the numbers to zero */
} sum_trial;

static pen_status do_sum(const device_ops *ops, const sum_arrays *a, const sum_trial *t,
                         pen_error *why)
{
    float *sum    = (float *)(void *)(a->sum + t->sum_at);
    char *numbers = a->numbers + t->at;
    if (t->what == 3) return ops->zero(numbers, t->n, NULL, why);
    if (t->what == 2) return ops->narrow(numbers, sum, t->dtype, t->n, NULL, why);
    return ops->accumulate(sum, numbers, t->dtype, t->n, t->what == 0, NULL, why);
}

static void draw_sum(sum_trial *t)
{
    const int lie =
        members_random() %
        3; /* both on whole words; on elements; on elements, mostly with equal offsets */
    t->what = members_random() % 4;
    t->dtype =
        (pen_dtype)((t->what == 2 ? PEN_F16 : PEN_F32) + members_random() % (t->what == 2 ? 2 : 3));
    t->n      = (size_t)members_random() % (members_random() % 8 == 0 ? 30000 : 300);
    t->sum_at = lie == 0 ? 0 : (size_t)(members_random() % 5) * 4;
    t->at     = lie == 0   ? 0
                : lie == 1 ? (size_t)(members_random() % 9) * width[t->dtype]
                           : t->sum_at * width[t->dtype] / 4 % 16;
}

/* Whole arrays are compared: memory around the results must be unchanged. */
static int sum_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    pen_error why      = {0};
    sum_arrays at_host = {malloc(SUM_BYTES), malloc(SUM_BYTES)},
               at_gpu  = {device_cuda.alloc(SUM_BYTES, 0, NULL),
                          device_cuda.alloc(SUM_BYTES, 0, NULL)};
    char *back         = malloc(SUM_BYTES);
    members_seed(13);
    if (!at_host.sum || !at_host.numbers || !at_gpu.sum || !at_gpu.numbers || !back) return 1;
    for (int i = 0; i < SUM_TRIALS / share; i++) {
        sum_trial t;
        draw_sum(&t);
        draw_bits(at_host.numbers, t.dtype);
        draw_bits(at_host.sum, PEN_F32);
        if (!members_copy(at_gpu.sum, at_host.sum, SUM_BYTES) ||
            !members_copy(at_gpu.numbers, at_host.numbers, SUM_BYTES))
            return 1;
        if (do_sum(&device_cuda, &at_gpu, &t, &why) != PEN_OK) return printf("%s\n", why.text), 1;
        (void)do_sum(&device_cpu, &at_host, &t, &why);
        const bool ok = members_copy(back, at_gpu.sum, SUM_BYTES) &&
                        is_alike(PEN_F32, at_host.sum, back) &&
                        members_copy(back, at_gpu.numbers, SUM_BYTES) &&
                        is_alike(t.dtype, at_host.numbers, back);
        if (ok) continue;
        printf("operation %d of %zu, type %d, sum at %zu, numbers at %zu: differs\n", t.what, t.n,
               t.dtype, t.sum_at, t.at);
        return 1;
    }
    printf("%d sums are the host's, bit for bit\n", SUM_TRIALS / share);
    return 0;
}

/* ---- the arithmetic of a step ---------------------------------------------------------------------- */

static int step_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    const step_device d = {&device_cuda, members_copy};
    return step_suite_weigh(&d) && step_suite_norm(&d) && step_suite_decide(&d) ? 0 : 1;
}

static int update_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    const step_device d = {&device_cuda, members_copy};
    return step_suite_golden(&d) && step_suite_update(&d) ? 0 : 1;
}

/* ---- streams --------------------------------------------------------------------------------------- */

static bool wait_for(device_event *event)
{
    pen_error why     = {0};
    pen_status status = PEN_AGAIN;
    while ((status = device_cuda.event_done(event, &why)) == PEN_AGAIN) sched_yield();
    if (status != PEN_OK) printf("%s\n", why.text);
    return status == PEN_OK;
}

typedef struct {
    device_stream stream[2];
    device_event *came, *done;
    char *in, *out, *device[2];
} relay;

/* Host to device on one stream, device to device and back on the other, which waits for the first;
 * the host waits once. */
static bool pass(const relay *r, size_t n)
{
    pen_error why = {0};
    const bool ok = device_cuda.copy(r->device[0], r->in, n, r->stream[0], &why) == PEN_OK &&
                    device_cuda.event_record(r->came, r->stream[0], &why) == PEN_OK &&
                    device_cuda.stream_wait(r->stream[1], r->came, &why) == PEN_OK &&
                    device_cuda.copy(r->device[1], r->device[0], n, r->stream[1], &why) == PEN_OK &&
                    device_cuda.copy(r->out, r->device[1], n, r->stream[1], &why) == PEN_OK &&
                    device_cuda.event_record(r->done, r->stream[1], &why) == PEN_OK;
    if (!ok) printf("%s\n", why.text);
    return ok && wait_for(r->done);
}

/* Streams that are freed with pending work still run it. */
static bool give_back(relay *r)
{
    memset(r->out, 1, ARRAY_BYTES);
    bool ok = device_cuda.zero(r->device[1], ARRAY_BYTES, r->stream[1], NULL) == PEN_OK &&
              device_cuda.copy(r->out, r->device[1], ARRAY_BYTES, r->stream[1], NULL) == PEN_OK &&
              device_cuda.event_record(r->done, r->stream[1], NULL) == PEN_OK;
    for (int i = 0; i < 2; i++) device_cuda.stream_free(r->stream[i]);
    ok = ok && wait_for(r->done);
    for (size_t i = 0; ok && i < ARRAY_BYTES; i++) ok = r->out[i] == 0;
    return ok;
}

static int stream_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    pen_error why = {0};
    relay r       = {.came = device_cuda.event_new(), .done = device_cuda.event_new()};
    r.in          = aligned_alloc(4096, ARRAY_BYTES); /* ordinary memory, pinned later */
    r.out         = device_cuda.host_alloc(ARRAY_BYTES, &why);
    if (!r.in || !r.out || !r.came || !r.done) return 1;
    for (int i = 0; i < 2; i++) {
        r.device[i] = device_cuda.alloc(ARRAY_BYTES, 0, &why);
        if (!r.device[i] || device_cuda.stream_new(0, &r.stream[i], &why) != PEN_OK) return 1;
    }
    bool ok = r.stream[0] != r.stream[1] && device_cuda.pin(r.in, ARRAY_BYTES, &why) == PEN_OK &&
              device_cuda.pin(r.in, 0, &why) == PEN_OK;
    for (int i = 0; ok && i < 200; i++) {
        const size_t n = 1 + (size_t)members_random() % ARRAY_BYTES;
        for (size_t k = 0; k < n; k++) r.in[k] = (char)(k * 31 + (size_t)i * 7);
        ok = pass(&r, n) && memcmp(r.in, r.out, n) == 0;
    }
    ok = ok && give_back(&r);
    device_cuda.unpin(r.in);
    printf(ok ? "streams wait for each other\n" : "what came out is not what went in (%s)\n",
           why.text);
    return ok ? 0 : 1;
}

/* ---- two devices of one process -------------------------------------------------------------------- */

/* A fold on device 0 of one array there and one on device 1, once that is mapped. */
static int peer_trial(member *self, const void *arg)
{
    enum { N = 5000 };
    (void)self, (void)arg;
    pen_error why  = {0};
    device_ref ref = {0};
    void *mapped   = NULL;
    float numbers[N], got[N];
    float *near = device_cuda.alloc(sizeof numbers, 0, &why),
          *out  = device_cuda.alloc(sizeof numbers, 0, &why),
          *far  = device_cuda.alloc(sizeof numbers, 1, &why);
    for (int i = 0; i < N; i++) numbers[i] = (float)i;
    if (!near || !out || !far || !members_copy(near, numbers, sizeof numbers) ||
        !members_copy(far, numbers, sizeof numbers) || device_cuda.device(far) != 1)
        return printf("%s\n", why.text), 1;
    bool ok = device_cuda.share(far, sizeof numbers, &ref, &why) == PEN_OK &&
              device_cuda.map(&ref, &mapped, &why) == PEN_OK && mapped == far;
    const reduce_args args = {.op    = PEN_SUM,
                              .dtype = PEN_F32,
                              .n_in  = 2,
                              .n_out = 1,
                              .in    = (const void *[]){near, mapped},
                              .out   = (void *[]){out}};
    ok                     = ok && device_cuda.reduce(&args, 0, N, NULL, &why) == PEN_OK &&
         members_copy(got, out, sizeof got);
    for (int i = 0; ok && i < N; i++) ok = got[i] == (float)(2 * i);
    printf(ok ? "a device folds what lies on another\n" : "the fold is wrong (%s)\n", why.text);
    return ok ? 0 : 1;
}

/* ---- contexts -------------------------------------------------------------------------------------- */

/* An event may be recorded in any context, one after the other; but others hold the handle of a shared one. */
static int context_trial(member *self, const void *arg)
{
    (void)self, (void)arg;
    int (*create)(void **context, unsigned flags, int device) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    device_stream first, second;
    device_event_ref ref;
    pen_error why       = {0};
    device_event *plain = device_cuda.event_new(), *shared = device_cuda.event_new();
    *(void **)&create = dlsym(driver, "cuCtxCreate_v2");
    bool ok           = create != NULL && device_cuda.stream_new(0, &first, &why) == PEN_OK &&
              device_cuda.event_share(shared, &ref, &why) == PEN_OK;
    ok = ok && create(&context, 0, 0) == 0 && device_cuda.stream_new(0, &second, &why) == PEN_OK;
    ok = ok && device_cuda.event_record(plain, first, &why) == PEN_OK &&
         device_cuda.event_record(plain, second, &why) == PEN_OK &&
         device_cuda.event_record(shared, first, &why) == PEN_OK && wait_for(plain) &&
         wait_for(shared);
    ok = ok && device_cuda.event_record(shared, second, &why) == PEN_UNSUPPORTED;
    printf("%s\n", why.text);
    return ok ? 0 : 1;
}

/* ---- forbidden to the host ------------------------------------------------------------------------- */

static sigjmp_buf after_touch;

static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(after_touch, 1);
}

static int touch_trial(member *self, const void *arg)
{
    (void)self, (void)arg;
    volatile char *data = device_cuda.alloc(64, 0, NULL);
    if (data == NULL || !members_drain()) return 1;
    signal(SIGSEGV, on_fault);
    if (sigsetjmp(after_touch, 1) == 0) {
        printf("the host reads %d in memory of the device\n", data[0]);
        return 1;
    }
    printf("the host cannot touch memory of the device\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 2 && atoi(argv[2]) > 0) share = atoi(argv[2]);
    if (strcmp(what, "fold") == 0) return members_run(1, 120, fold_trials, NULL);
    if (strcmp(what, "copy") == 0) return members_run(1, 60, copy_trials, NULL);
    if (strcmp(what, "flag") == 0) return members_run(1, 60, flag_trials, NULL);
    if (strcmp(what, "sum") == 0) return members_run(1, 120, sum_trials, NULL);
    if (strcmp(what, "step") == 0) return members_run(1, 120, step_trials, NULL);
    if (strcmp(what, "update") == 0) return members_run(1, 120, update_trials, NULL);
    if (strcmp(what, "stream") == 0) return members_run(1, 60, stream_trials, NULL);
    if (strcmp(what, "context") == 0) return members_run(1, 60, context_trial, NULL);
    members_devices = strcmp(what, "peer") == 0 ? 2 : 1;
    if (members_devices == 2) return members_run(1, 60, peer_trial, NULL);
    if (strcmp(what, "touch") == 0) return members_run(1, 60, touch_trial, NULL);
    fprintf(stderr,
            "usage: kernels fold|sum|step|update|copy|flag|stream|context|peer|touch [SHARE]\n");
    return 2;
}
