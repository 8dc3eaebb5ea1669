/* device_cuda_work.c - operations on CUDA devices: folds, sums, copies, flags. */
#include "common/compute/device/device_cuda.h"

#ifdef PENSTOCK_CUDA

#include "common/base/why.h"
#include "common/compute/device/kernels/kernels.h"

static size_t element_bytes(pen_dtype dtype)
{
    static const uint8_t bytes[] = {
        [PEN_F32] = 4, [PEN_F16] = 2, [PEN_BF16] = 2, [PEN_F64] = 8, [PEN_I8] = 1,
        [PEN_U8] = 1,  [PEN_I32] = 4, [PEN_U32] = 4,  [PEN_I64] = 8, [PEN_U64] = 8,
    };
    return bytes[dtype];
}

/* Sets the common alignment of all arrays, and the elements before their first whole 16 bytes. */
static void set_lie(kernel_fold *k, size_t width)
{
    const uintptr_t first = (uintptr_t)k->in[0];
    bool is_alike = true, is_whole = true;
    for (int i = 0; i < k->n_in + k->n_out; i++) {
        const uintptr_t at = (uintptr_t)(i < k->n_in ? k->in[i] : k->out[i - k->n_in]);
        is_alike           = is_alike && (at - first) % 16 == 0;
        is_whole           = is_whole && at % width == 0;
    }
    k->lie  = !is_whole ? KERNEL_BYTES : is_alike ? KERNEL_WIDE : KERNEL_ELEMENTS;
    k->head = (16 - first % 16) % 16 / width;
    if (k->head > k->count) k->head = k->count;
}

static pen_status fill_fold(kernel_fold *k, const reduce_args *args, size_t begin, size_t count,
                            pen_error *why)
{
    if (!reduce_is_legal(args->op, args->dtype))
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no reduction %d of type %d", args->op,
                       args->dtype);
    if (args->n_in > KERNEL_ARRAYS_MAX || args->n_out > KERNEL_ARRAYS_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "a CUDA device folds at most %d arrays at a time, not %d", KERNEL_ARRAYS_MAX,
                       args->n_in > args->n_out ? args->n_in : args->n_out);
    const size_t width = element_bytes(args->dtype);
    for (int i = 0; i < args->n_in; i++) {
        k->in[i]    = (const char *)args->in[i] + begin * width;
        k->scale[i] = args->scale != NULL ? args->scale[i] : 1.0;
    }
    for (int i = 0; i < args->n_out; i++) k->out[i] = (char *)args->out[i] + begin * width;
    k->count     = count;
    k->n_in      = args->n_in;
    k->n_out     = args->n_out;
    k->op        = (int32_t)args->op;
    k->divide_by = args->divide_by > 0 ? args->divide_by : args->n_in;
    k->has_scale = args->scale != NULL;
    set_lie(k, width);
    return PEN_OK;
}

pen_status cuda_reduce(const reduce_args *args, size_t begin, size_t count, device_stream stream,
                       pen_error *why)
{
    kernel_fold k     = {0};
    pen_status status = fill_fold(&k, args, begin, count, why);
    if (status != PEN_OK || count == 0) return status;
    const int two     = FOLD_TWO + (int)args->dtype;
    const bool is_two = args->n_in == 2 && cuda_has_kernel(two);
    const uint64_t work =
        k.lie == KERNEL_WIDE ? (count * element_bytes(args->dtype) + 15) / 16 : count;
    status = cuda_enter_for(stream, k.out[0], why);
    if (status != PEN_OK) return status;
    status = cuda_launch_work(is_two ? two : FOLD_ANY + (int)args->dtype, &k, work, stream, why);
    cuda_leave();
    return status;
}

/* ---- sums ---------------------------------------------------------------------------------------- */

static pen_status launch_sum(int first, kernel_sum *k, pen_dtype dtype, device_stream stream,
                             pen_error *why)
{
    if (dtype < PEN_F32 || dtype > PEN_BF16 || !cuda_has_kernel(first + (int)dtype))
        return why_set(why, PEN_INVALID_ARGUMENT, "sums are not made of, or rounded to, type %d",
                       dtype);
    if (k->count == 0) return PEN_OK;
    const size_t width = element_bytes(dtype);
    /* Both arrays reach whole 16 bytes after the same elements, or go element by element. */
    const uintptr_t sum = (uintptr_t)k->sum, numbers = (uintptr_t)k->numbers;
    k->head             = (16 - numbers % 16) % 16 / width;
    const bool is_wide  = (sum + k->head * sizeof(float)) % 16 == 0;
    const bool is_whole = sum % sizeof(float) == 0 && numbers % width == 0;
    k->lie              = !is_whole ? KERNEL_BYTES : is_wide ? KERNEL_WIDE : KERNEL_ELEMENTS;
    if (k->head > k->count) k->head = k->count;
    const uint64_t work = k->lie == KERNEL_WIDE ? (k->count * width + 15) / 16 : k->count;
    pen_status status   = cuda_enter_for(stream, k->sum, why);
    if (status != PEN_OK) return status;
    status = cuda_launch_work(first + (int)dtype, k, work, stream, why);
    cuda_leave();
    return status;
}

pen_status cuda_accumulate(float *sum, const void *in, pen_dtype dtype, size_t n, bool is_first,
                           device_stream stream, pen_error *why)
{
    kernel_sum k = {.sum = sum, .numbers = (void *)in, .count = n, .is_first = is_first};
    return launch_sum(ACCUMULATE, &k, dtype, stream, why);
}

pen_status cuda_narrow(void *to, const float *sum, pen_dtype dtype, size_t n, device_stream stream,
                       pen_error *why)
{
    kernel_sum k = {.sum = (float *)sum, .numbers = to, .count = n};
    return launch_sum(NARROW, &k, dtype, stream, why);
}

pen_status cuda_zero(void *to, size_t bytes, device_stream stream, pen_error *why)
{
    if (bytes == 0) return PEN_OK;
    pen_status status = cuda_enter_for(stream, to, why);
    if (status != PEN_OK) return status;
    status = cuda_failed(cuda_driver.cuMemsetD8Async((CUdeviceptr)to, 0, bytes, (CUstream)stream),
                         "zeroing", why);
    cuda_leave();
    return status;
}

/* ---- copies -------------------------------------------------------------------------------------- */

/* Within the stream's device, uses our own kernel: it runs while the copy engines serve the host, and does not vary
 * with the driver.  The driver does all other copies. */
pen_status cuda_copy(void *to, const void *from, size_t bytes, device_stream stream, pen_error *why)
{
    kernel_copy k    = {.in = from, .out = to, .bytes = bytes};
    const int device = cuda_device(to);
    if (bytes == 0 || to == from) return PEN_OK;
    pen_status status = cuda_enter_for(stream, device >= 0 ? to : from, why);
    if (status != PEN_OK) return status;
    if (device >= 0 && device == cuda_current() && cuda_owns(to) && cuda_owns(from) &&
        cuda_device(from) == device)
        status = cuda_launch_work(COPY_BYTES, &k, (bytes + 15) / 16, stream, why);
    else
        status = cuda_failed(
            cuda_driver.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, (CUstream)stream),
            "copying", why);
    cuda_leave();
    return status;
}

/* ---- flags --------------------------------------------------------------------------------------- */

_Static_assert((int)DEVICE_FLAG_BYTES == (int)KERNEL_FLAG_BYTES &&
                   (int)DEVICE_ARRAYS_MAX == (int)KERNEL_ARRAYS_MAX &&
                   (int)DEVICE_FLAG_ABORTED == (int)KERNEL_ABORTED &&
                   (int)DEVICE_FLAG_LATE == (int)KERNEL_LATE,
               "device.h and kernels.h say the same");

static pen_status too_many(int n, pen_error *why)
{
    return why_set(why, PEN_UNSUPPORTED, "a CUDA device waits for at most %d members, not %d",
                   KERNEL_ARRAYS_MAX, n);
}

pen_status cuda_flag_set(void *const *flags, int n, uint64_t value, device_stream stream,
                         pen_error *why)
{
    kernel_flag_set k = {.value = value, .n = n};
    if (n > KERNEL_ARRAYS_MAX) return too_many(n, why);
    for (int i = 0; i < n; i++) k.flag[i] = flags[i];
    pen_status status = cuda_enter_for(stream, NULL, why);
    if (status != PEN_OK) return status;
    status = cuda_launch(FLAG_SET, &k, 1, KERNEL_ARRAYS_MAX, stream, why);
    cuda_leave();
    return status;
}

pen_status cuda_flag_wait(const device_flag_wait *wait, device_stream stream, pen_error *why)
{
    kernel_flag_wait k = {.flags      = wait->flags,
                          .abort      = wait->abort,
                          .result     = wait->result,
                          .value      = wait->value,
                          .timeout_ns = wait->timeout_ns,
                          .n          = wait->n};
    if (wait->n > KERNEL_ARRAYS_MAX) return too_many(wait->n, why);
    pen_status status = cuda_enter_for(stream, wait->flags, why);
    if (status != PEN_OK) return status;
    status = cuda_launch(FLAG_WAIT, &k, 1, KERNEL_ARRAYS_MAX, stream, why);
    cuda_leave();
    return status;
}

#endif
