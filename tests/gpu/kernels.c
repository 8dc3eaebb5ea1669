/* kernels.c - the kernels against the host code: every type, operation and layout, bit for bit; NaNs may differ in
 * what they carry.  One process. */
#include "members.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ARRAY_BYTES = 1 << 20, ARRAYS = 6, OUTS = 2, TRIALS = 4000 };

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

/* Arrays on whole words alike, on elements, or anyhow; sizes from none to many blocks. */
static void draw(trial *t)
{
    const pen_dtype dtype = (pen_dtype)(1 + rand() % 10);
    pen_op op             = (pen_op)(rand() % 11);
    while (!reduce_is_legal(op, dtype)) op = (pen_op)(rand() % 5);
    const int lie = rand() % 4;
    t->args       = (reduce_args){
              .op = op, .dtype = dtype, .n_in = 1 + rand() % ARRAYS, .n_out = 1 + rand() % OUTS};
    t->n = (size_t)rand() % (rand() % 8 == 0 ? 100000 : 300);
    for (int i = 0; i < ARRAYS + OUTS; i++) {
        t->at[i] = lie == 0   ? 0
                   : lie == 1 ? 16 - width[dtype]
                   : lie == 2 ? (size_t)(rand() % 5) * width[dtype]
                              : (size_t)(rand() % 33);
        if (i < ARRAYS) {
            t->scale[i]     = rand() % 3 == 0 ? 1 : (rand() % 200 - 100) / 8.0;
            t->host_in[i]   = host[i] + t->at[i];
            t->device_in[i] = device[i] + t->at[i];
        } else {
            t->host_out[i - ARRAYS]   = host[i] + t->at[i];
            t->device_out[i - ARRAYS] = device[i] + t->at[i];
        }
    }
    t->args.scale     = rand() % 2 ? t->scale : NULL;
    t->args.divide_by = rand() % 3 ? 0 : 7;
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
    srand(7);
    for (int i = 0; i < ARRAYS + OUTS; i++) {
        host[i]   = aligned_alloc(256, ARRAY_BYTES);
        device[i] = device_cuda.alloc(ARRAY_BYTES, 0, NULL);
        if (device[i] == NULL || host[i] == NULL || back == NULL) return 1;
        for (int k = 0; k < ARRAY_BYTES / 4; k++) {
            const float x  = (float)(rand() % 2001 - 1000) / 64;
            const int bits = rand();
            memcpy(host[i] + 4 * (size_t)k, k % 2 ? (const void *)&x : (const void *)&bits, 4);
        }
        if (!members_copy(device[i], host[i], ARRAY_BYTES)) return 1;
    }
    for (int i = 0; i < TRIALS; i++) {
        trial t;
        draw(&t);
        if (!run(&t, back)) return 1;
    }
    printf("%d folds are the host's, bit for bit\n", TRIALS);
    return 0;
}

static int copy_trials(member *self, const void *arg)
{
    (void)self, (void)arg;
    unsigned char *a  = device_cuda.alloc(ARRAY_BYTES, 0, NULL),
                  *b  = device_cuda.alloc(ARRAY_BYTES, 0, NULL);
    unsigned char *in = malloc(ARRAY_BYTES), *out = malloc(ARRAY_BYTES);
    if (a == NULL || b == NULL || in == NULL || out == NULL) return 1;
    for (int i = 0; i < ARRAY_BYTES; i++) in[i] = (unsigned char)rand();
    if (!members_copy(a, in, ARRAY_BYTES)) return 1;
    for (int i = 0; i < 300; i++) {
        const size_t from = (size_t)(rand() % 40), to = (size_t)(rand() % 40),
                     n = (size_t)(rand() % (i % 10 ? 500 : 900000));
        if (device_cuda.copy(b + to, a + from, n, NULL, NULL) != PEN_OK) return 1;
        if (!members_copy(out, b + to, n) || memcmp(out, in + from, n) != 0) {
            printf("a copy of %zu bytes from %zu to %zu differs\n", n, from, to);
            return 1;
        }
    }
    printf("copies are right\n");
    return 0;
}

/* A wait that nobody ends, ends at its deadline or at the abort word; one whose flags are there ends well. */
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

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "fold") == 0) return members_run(1, 120, fold_trials, NULL);
    if (strcmp(what, "copy") == 0) return members_run(1, 60, copy_trials, NULL);
    if (strcmp(what, "flag") == 0) return members_run(1, 60, flag_trials, NULL);
    fprintf(stderr, "usage: kernels fold|copy|flag\n");
    return 2;
}
