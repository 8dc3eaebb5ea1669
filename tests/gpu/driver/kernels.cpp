/* kernels.cpp - the kernels of common/compute/device/kernels, compiled for the host, for launches
 * by the fake driver. */
#include "../cuda_on_host.h"
#include "common/compute/device/kernels/kernels_step.h"
#include "driver.h"

#include <cstring>
#include <utility>

/* ---- the memory that a kernel touches -------------------------------------------------------------- */

static extent array(const void *at, uint64_t bytes)
{
    return {(uintptr_t)at, bytes};
}

static extents reach(const kernel_fold &k, size_t width)
{
    extents all;
    for (int i = 0; i < k.n_in; i++) all.push_back(array(k.in[i], k.count * width));
    for (int i = 0; i < k.n_out; i++) all.push_back(array(k.out[i], k.count * width));
    return all;
}

static extents reach(const kernel_sum &k, size_t width)
{
    return {array(k.sum, k.count * sizeof(float)), array(k.numbers, k.count * width)};
}

static extents reach(const kernel_copy &k, size_t)
{
    return {array(k.in, k.bytes), array(k.out, k.bytes)};
}

static extents reach(const kernel_flag_set &k, size_t)
{
    extents all;
    for (int i = 0; i < k.n; i++) all.push_back(array(k.flag[i], sizeof(uint64_t)));
    return all;
}

static extents reach(const kernel_flag_wait &k, size_t)
{
    return {array(k.flags, (uint64_t)k.n * KERNEL_FLAG_BYTES), array(k.abort, 8),
            array(k.result, 4)};
}

static extents reach(const kernel_weigh &k, size_t width)
{
    return {array(k.w.to, k.w.n * sizeof(float)), array(k.w.bad, sizeof *k.w.bad),
            array(k.w.grad, k.w.grad == nullptr ? 0 : k.w.n * width)};
}

static uint64_t sums_of(uint64_t n)
{
    return (n + SIMD_BLOCK - 1) / SIMD_BLOCK * sizeof(double);
}

static extents reach(const kernel_norm &k, size_t)
{
    extents all = {array(k.bad, sizeof *k.bad)};
    for (int i = 0; i < k.n; i++) {
        all.push_back(array(k.span[i].x, k.span[i].n * sizeof(float)));
        all.push_back(array(k.span[i].sums, sums_of(k.span[i].n)));
    }
    return all;
}

static extents reach(const kernel_roots &k, size_t)
{
    return {array(k.sums[0], k.n * sizeof(double)), array(k.sums[1], k.n * sizeof(double)),
            array(k.norms, 2 * sizeof(double))};
}

static extents reach(const device_decide &d, size_t)
{
    return {array(d.sums, d.n_sums * sizeof(double)),   array(d.bad, sizeof *d.bad),
            array(d.own_bad, sizeof *d.own_bad),        array(d.stop, d.stop ? sizeof *d.stop : 0),
            array(d.last, d.last ? sizeof *d.last : 0), array(d.verdict, sizeof *d.verdict)};
}

static void add(extents &all, const void *at, uint64_t bytes)
{
    if (at != nullptr) all.push_back(array(at, bytes));
}

/* is_first: the first pass of LAMB. */
static void reach_span(const device_update_span &s, bool is_first, extents &all)
{
    const uint64_t bytes = s.n * sizeof(float);
    add(all, s.param, bytes);
    add(all, s.grad, bytes);
    for (float *slot : s.slot) add(all, slot, bytes);
    add(all, s.values, s.values_dtype == PEN_F32 ? bytes : bytes / 2);
    add(all, s.norms, 2 * sizeof(double));
    if (!is_first) return;
    add(all, s.param_sums, sums_of(s.n));
    add(all, s.update_sums, sums_of(s.n));
}

/* width 0: the first pass of LAMB. */
static extents reach(const kernel_update &k, size_t width)
{
    extents all = {array(k.verdict, sizeof *k.verdict)};
    for (int i = 0; i < k.n; i++) reach_span(k.span[i].s, width == 0, all);
    return all;
}

/* ---- the table ------------------------------------------------------------------------------------- */
struct kernel_row {
    const char *file, *name;
    size_t bytes; /* of its argument */
    extents (*reach)(const void *argument);
    void (*run)(const void *argument, dim3 grid, dim3 block);
};

/* A template per function, so that the table needs only its name. */
template <typename A, void (*kernel)(const A), size_t width> struct played {
    static extents touched(const void *argument)
    {
        return reach(*(const A *)argument, width);
    }
    static void run(const void *argument, dim3 grid, dim3 block)
    {
        const A &k = *(const A *)argument;
        host_each(grid, block, [&] { kernel(k); });
    }
};

/* Its file, name and argument, and the width of an element. */
#define KERNELS(X)                                                                                 \
    X(fold, fold_f32_0, kernel_fold, 4)                                                            \
    X(fold, fold_f16_0, kernel_fold, 2)                                                            \
    X(fold, fold_bf16_0, kernel_fold, 2)                                                           \
    X(fold, fold_f64_0, kernel_fold, 8)                                                            \
    X(fold, fold_i8_0, kernel_fold, 1)                                                             \
    X(fold, fold_u8_0, kernel_fold, 1)                                                             \
    X(fold, fold_i32_0, kernel_fold, 4)                                                            \
    X(fold, fold_u32_0, kernel_fold, 4)                                                            \
    X(fold, fold_i64_0, kernel_fold, 8)                                                            \
    X(fold, fold_u64_0, kernel_fold, 8)                                                            \
    X(fold, fold_f32_2, kernel_fold, 4)                                                            \
    X(fold, fold_f16_2, kernel_fold, 2)                                                            \
    X(fold, fold_bf16_2, kernel_fold, 2)                                                           \
    X(sum, accumulate_f32, kernel_sum, 4)                                                          \
    X(sum, accumulate_f16, kernel_sum, 2)                                                          \
    X(sum, accumulate_bf16, kernel_sum, 2)                                                         \
    X(sum, narrow_f16, kernel_sum, 2)                                                              \
    X(sum, narrow_bf16, kernel_sum, 2)                                                             \
    X(step, weigh_f32_f32, kernel_weigh, 4)                                                        \
    X(step, weigh_f32_f16, kernel_weigh, 4)                                                        \
    X(step, weigh_f32_bf16, kernel_weigh, 4)                                                       \
    X(step, weigh_f16_f16, kernel_weigh, 2)                                                        \
    X(step, weigh_bf16_bf16, kernel_weigh, 2)                                                      \
    X(step, weigh_none, kernel_weigh, 0)                                                           \
    X(step, norm_blocks, kernel_norm, 4)                                                           \
    X(step, roots, kernel_roots, 8)                                                                \
    X(step, decide, device_decide, 8)                                                              \
    X(update, update_sum, kernel_update, 4)                                                        \
    X(update, update_sgd, kernel_update, 4)                                                        \
    X(update, update_sgd_momentum, kernel_update, 4)                                               \
    X(update, update_adam, kernel_update, 4)                                                       \
    X(update, update_adagrad, kernel_update, 4)                                                    \
    X(update, update_rmsprop, kernel_update, 4)                                                    \
    X(update, update_adadelta, kernel_update, 4)                                                   \
    X(update, update_adamax, kernel_update, 4)                                                     \
    X(update, update_ftrl, kernel_update, 4)                                                       \
    X(update, update_lion, kernel_update, 4)                                                       \
    X(update, update_lamb, kernel_update, 4)                                                       \
    X(update, update_lamb_norms, kernel_update, 0)                                                 \
    X(copy, copy_bytes, kernel_copy, 1)                                                            \
    X(flag, flag_set, kernel_flag_set, 1)                                                          \
    X(flag, flag_wait, kernel_flag_wait, 1)

#define DECLARE(file, name, type, width) extern "C" void name(const type k);
#define ROW(file, name, type, width)                                                               \
    {#file, #name, sizeof(type), played<type, name, width>::touched,                               \
     played<type, name, width>::run},

KERNELS(DECLARE)
static const kernel_row table[] = {KERNELS(ROW)};

/* ---- modules --------------------------------------------------------------------------------------- */
struct CUmod_st {
    CUcontext context;
    const char *file; /* NULL until the first function; all others are in the same file */
};
struct CUfunc_st {
    CUcontext context;
    const kernel_row *row;
    bool is_loaded;
};

static std::list<CUmod_st> &modules    = *new std::list<CUmod_st>(); /* until the process ends */
static std::list<CUfunc_st> &functions = *new std::list<CUfunc_st>();

/* The magic number of nvcc -fatbin; the machine code behind it is not read. */
API cuModuleLoadData(CUmodule *module, const void *image)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (*(const uint32_t *)image != 0xba55ed50u) return CUDA_ERROR_INVALID_IMAGE;
    guard held(driver.lock);
    modules.push_back({context_now(), nullptr});
    *module = &modules.back();
    return CUDA_SUCCESS;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    for (const kernel_row &row : table) {
        if (strcmp(row.name, name) != 0) continue;
        if (module->file != nullptr && strcmp(module->file, row.file) != 0) break;
        module->file = row.file;
        functions.push_back({module->context, &row, false});
        *function = &functions.back();
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- launches -------------------------------------------------------------------------------------- */

/* With the lock held. */
static bool may_touch(CUcontext context, const extent &e)
{
    const block *b = memory_find(e.at, e.bytes);
    if (e.bytes == 0) return true;
    if (b == nullptr) return false;
    return b->kind != OWN || b->device == context->device || context->peers >> b->device & 1;
}

/* Checked when the work runs, as on the device: memory may be gone by then. */
static bool may_run(CUfunction f, const extents &touched)
{
    guard held(driver.lock);
    for (const extent &e : touched)
        if (!may_touch(f->context, e)) driver.lost = CUDA_ERROR_ILLEGAL_ADDRESS;
    return driver.lost == CUDA_SUCCESS;
}

/* Kernels also cross the host's boundary: pinned memory is in their reach. */
static size_t host_bytes(const extents &touched)
{
    size_t sum = 0;
    for (const extent &e : touched)
        if (memory_device(e.at) < 0) sum += e.bytes;
    return sum;
}

/* A kernel that waits leaves the device to other streams: here it begins when its wait would end. */
static std::function<bool()> when_flags_came(const kernel_flag_wait &k)
{
    const auto until = timer::now() + std::chrono::nanoseconds(k.timeout_ns);
    return [=] {
        bool all = true;
        for (int i = 0; i < k.n && all; i++)
            all = memory_peek((uintptr_t)k.flags + (uintptr_t)i * KERNEL_FLAG_BYTES) >= k.value;
        return all || memory_peek((uintptr_t)k.abort) != 0 || timer::now() > until;
    };
}

/* Lazy loading: the first launch of a kernel may wait for the device. */
static void load(guard &held, CUfunction f)
{
    static const bool is_lazy = getenv("CUDA_ON_HOST_LAZY") != nullptr;
    if (is_lazy && !std::exchange(f->is_loaded, true)) drain_all(held, f->context);
}

API cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   CUstream handle, void **arguments, void **)
{
    CUresult result        = usable(true);
    const bool is_wait     = strcmp(f->row->name, "flag_wait") == 0;
    const site_order order = is_wait ? site_orders("flag_wait") : SITE_AS_IT_COMES;
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS || order == SITE_IS_DROPPED) return result;
    s->is_late = s->is_late || (site_drops_flags() && strcmp(f->row->name, "flag_set") == 0);
    if (f->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    if (grid_x == 0 || block_x == 0 || block_x > 1024 || grid_y * grid_z * block_y * block_z != 1 ||
        shared != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const char *from = (const char *)arguments[0];
    const std::vector<char> argument(from, from + f->row->bytes);
    const extents touched = f->row->reach(from);
    count(CALLER, "kernel");
    log_work(name_of(s) + " runs " + f->row->name);
    count(CALLER, "kernel.host.bytes", host_bytes(touched));
    load(held, f);
    kernel_flag_wait wait;
    if (is_wait) memcpy(&wait, from, sizeof wait);
    enqueue(
        s, touched,
        [=] {
            if (may_run(f, touched)) f->row->run(argument.data(), dim3(grid_x), dim3(block_x));
        },
        is_wait ? when_flags_came(wait) : std::function<bool()>());
    return driver.lost;
}
