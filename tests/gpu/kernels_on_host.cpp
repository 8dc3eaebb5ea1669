/* kernels_on_host.cpp - fold.cu compiled for the host, its threads one after another, against
 * reduce(): every type, operation, alignment, tail and scale, bit for bit; NaNs may differ in their
 * payload. */
#include "cuda_on_host.h"
extern "C" {
#include "common/compute/simd/reduce.h"
}
#include "common/compute/device/kernels/fold.cu"

/* ---- types ---- */
typedef void kernel_fn(const kernel_fold k);
static const struct { size_t width; kernel_fn *any, *two; } types[] = {
    {0, nullptr, nullptr}, /* in the order of pen_dtype */
    {4, fold_f32_0, fold_f32_2}, {2, fold_f16_0, fold_f16_2}, {2, fold_bf16_0, fold_bf16_2},
    {8, fold_f64_0, nullptr},    {1, fold_i8_0, nullptr},     {1, fold_u8_0, nullptr},
    {4, fold_i32_0, nullptr},    {4, fold_u32_0, nullptr},    {8, fold_i64_0, nullptr},
    {8, fold_u64_0, nullptr},
};

static bool is_nan(int dtype, const unsigned char *at)
{
    const unsigned half = at[0] | at[1] << 8;
    float f;
    double d;
    if (dtype == PEN_F16) return (half & 0x7fff) > 0x7c00;
    if (dtype == PEN_BF16) return (half & 0x7fff) > 0x7f80;
    if (dtype == PEN_F32) return memcpy(&f, at, sizeof f), std::isnan(f);
    if (dtype == PEN_F64) return memcpy(&d, at, sizeof d), std::isnan(d);
    return false;
}

/* ---- trials ---- */
enum { INS = 5, OUTS = 2, BYTES = 4096, TRIALS = 10000, UNTOUCHED = 0xcc };
alignas(16) static unsigned char in[INS][BYTES], want[OUTS][BYTES], got[OUTS][BYTES];

static void set_lie(kernel_fold *k, size_t width)
{
    const uintptr_t first = (uintptr_t)k->in[0];
    bool is_alike = true, is_whole = true;
    for (int i = 0; i < k->n_in + k->n_out; i++) {
        const uintptr_t at = (uintptr_t)(i < k->n_in ? k->in[i] : k->out[i - k->n_in]);
        is_alike = is_alike && (at - first) % 16 == 0;
        is_whole = is_whole && at % width == 0;
    }
    k->lie  = !is_whole ? KERNEL_BYTES : is_alike ? KERNEL_WIDE : KERNEL_ELEMENTS;
    k->head = (16 - first % 16) % 16 / width;
    if (k->head > k->count) k->head = k->count;
}

static void fill(int dtype)
{
    const bool is_tame = rand() % 2;
    for (auto &array : in)
        for (size_t i = 0; i < BYTES / 8; i++) {
            const double x  = (rand() % 2001 - 1000) / 64.0;
            const float f[] = {(float)x, (float)-x};
            for (int b = 0; b < 8; b++) array[i * 8 + b] = (unsigned char)rand();
            if (is_tame && dtype == PEN_F32) memcpy(array + i * 8, f, 8);
            if (is_tame && dtype == PEN_F64) memcpy(array + i * 8, &x, 8);
        }
    memset(want, UNTOUCHED, sizeof want);
    memset(got, UNTOUCHED, sizeof got);
}

static bool trial()
{
    const int dtype = 1 + rand() % 10;
    int op          = rand() % 11;
    while (!reduce_is_legal((pen_op)op, (pen_dtype)dtype)) op = rand() % 5;
    const size_t width = types[dtype].width;
    const int lie      = rand() % 3;
    const size_t same  = (size_t)(rand() % 16) / width * width;
    const void *ins[INS];
    void *outs[OUTS];
    kernel_fold k = {};
    fill(dtype);
    k.n_in  = 1 + rand() % INS;
    k.n_out = 1 + rand() % OUTS;
    k.count = (uint64_t)rand() % 200;
    k.op    = op;
    size_t at[INS + OUTS];
    for (size_t &a : at) a = lie == 0 ? same : lie == 1 ? (size_t)(rand() % 4) * width : (size_t)rand() % 17;
    for (int i = 0; i < k.n_in; i++) {
        ins[i] = k.in[i] = in[i] + at[i];
        k.scale[i]       = rand() % 3 == 0 ? 1 : (rand() % 200 - 100) / 8.0;
    }
    for (int i = 0; i < k.n_out; i++) {
        outs[i]  = want[i] + at[INS + i];
        k.out[i] = got[i] + at[INS + i];
    }
    k.has_scale      = rand() % 2;
    const int divide = rand() % 3 ? 0 : 7;
    k.divide_by      = divide > 0 ? divide : k.n_in;
    set_lie(&k, width);
    reduce_args args = {};
    args.op = (pen_op)op, args.dtype = (pen_dtype)dtype, args.n_in = k.n_in, args.n_out = k.n_out;
    args.in = ins, args.out = outs, args.divide_by = divide;
    args.scale = k.has_scale ? k.scale : nullptr;
    reduce(&args, 0, k.count);
    kernel_fn *kernel = k.n_in == 2 && types[dtype].two != nullptr ? types[dtype].two : types[dtype].any;
    host_each(3, 5, [&] { kernel(k); });
    for (int o = 0; o < k.n_out; o++) /* NaNs are equal, whatever their payload */
        for (size_t i = 0; i < k.count; i++) {
            unsigned char *a = (unsigned char *)outs[o] + i * width, *b = (unsigned char *)k.out[o] + i * width;
            if (is_nan(dtype, a) && is_nan(dtype, b)) memcpy(b, a, width);
        }
    /* The memory around the results is compared with them. */
    if (memcmp(want, got, sizeof want) == 0) return true;
    printf("type %d, operation %d, %d inputs, %llu elements, lie %d: differs\n", dtype, op, k.n_in,
           (unsigned long long)k.count, k.lie);
    return false;
}

int main()
{
    srand(11);
    for (int i = 0; i < TRIALS; i++)
        if (!trial()) return 1;
    printf("%d folds agree\n", TRIALS);
    return 0;
}
