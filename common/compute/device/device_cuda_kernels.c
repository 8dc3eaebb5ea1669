/* device_cuda_kernels.c - finds and launches the kernels.
 *
 * Each kernels/<name>.cu is compiled to one image, embedded in this library and loaded into a context when its first
 * kernel is launched there.
 */
#include "common/compute/device/device_cuda.h"

#ifdef PENSTOCK_CUDA

#include "common/base/why.h"
#include "common/compute/device/kernels/kernels.h"
#include "common/compute/device/kernels/kernels_step.h"
#include <pthread.h>

enum { CONTEXTS_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects loaded modules */

#define IMAGE(name)                                                                                \
    __asm__(".pushsection .rodata\n.balign 16\n.local device_image_" #name "\ndevice_image_" #name \
            ":\n.incbin \"" PENSTOCK_KERNELS "/" #name ".fatbin\"\n.popsection\n");                \
    extern const unsigned char device_image_##name[] __attribute__((visibility("hidden")))

IMAGE(fold);
IMAGE(copy);
IMAGE(flag);
IMAGE(sum);
IMAGE(step);
IMAGE(update);

enum { IMAGES = 6 };

static const struct {
    const unsigned char *image;
    const char *name;
} kernel_table[CUDA_KERNELS] = {
    [FOLD_ANY + PEN_F32]         = {device_image_fold, "fold_f32_0"},
    [FOLD_ANY + PEN_F16]         = {device_image_fold, "fold_f16_0"},
    [FOLD_ANY + PEN_BF16]        = {device_image_fold, "fold_bf16_0"},
    [FOLD_ANY + PEN_F64]         = {device_image_fold, "fold_f64_0"},
    [FOLD_ANY + PEN_I8]          = {device_image_fold, "fold_i8_0"},
    [FOLD_ANY + PEN_U8]          = {device_image_fold, "fold_u8_0"},
    [FOLD_ANY + PEN_I32]         = {device_image_fold, "fold_i32_0"},
    [FOLD_ANY + PEN_U32]         = {device_image_fold, "fold_u32_0"},
    [FOLD_ANY + PEN_I64]         = {device_image_fold, "fold_i64_0"},
    [FOLD_ANY + PEN_U64]         = {device_image_fold, "fold_u64_0"},
    [FOLD_TWO + PEN_F32]         = {device_image_fold, "fold_f32_2"},
    [FOLD_TWO + PEN_F16]         = {device_image_fold, "fold_f16_2"},
    [FOLD_TWO + PEN_BF16]        = {device_image_fold, "fold_bf16_2"},
    [ACCUMULATE + PEN_F32]       = {device_image_sum, "accumulate_f32"},
    [ACCUMULATE + PEN_F16]       = {device_image_sum, "accumulate_f16"},
    [ACCUMULATE + PEN_BF16]      = {device_image_sum, "accumulate_bf16"},
    [NARROW + PEN_F16]           = {device_image_sum, "narrow_f16"},
    [NARROW + PEN_BF16]          = {device_image_sum, "narrow_bf16"},
    [COPY_BYTES]                 = {device_image_copy, "copy_bytes"},
    [FLAG_SET]                   = {device_image_flag, "flag_set"},
    [FLAG_WAIT]                  = {device_image_flag, "flag_wait"},
    [WEIGH + PEN_F32]            = {device_image_step, "weigh_f32_f32"},
    [WEIGH + PEN_F16]            = {device_image_step, "weigh_f16_f16"},
    [WEIGH + PEN_BF16]           = {device_image_step, "weigh_bf16_bf16"},
    [WEIGH_F32 + PEN_F16]        = {device_image_step, "weigh_f32_f16"},
    [WEIGH_F32 + PEN_BF16]       = {device_image_step, "weigh_f32_bf16"},
    [WEIGH_NONE]                 = {device_image_step, "weigh_none"},
    [NORM_BLOCKS]                = {device_image_step, "norm_blocks"},
    [DECIDE]                     = {device_image_step, "decide"},
    [ROOTS]                      = {device_image_step, "roots"},
    [UPDATE + SIMD_SUM]          = {device_image_update, "update_sum"},
    [UPDATE + SIMD_SGD]          = {device_image_update, "update_sgd"},
    [UPDATE + SIMD_SGD_MOMENTUM] = {device_image_update, "update_sgd_momentum"},
    [UPDATE + SIMD_ADAM]         = {device_image_update, "update_adam"},
    [UPDATE + SIMD_ADAGRAD]      = {device_image_update, "update_adagrad"},
    [UPDATE + SIMD_RMSPROP]      = {device_image_update, "update_rmsprop"},
    [UPDATE + SIMD_ADADELTA]     = {device_image_update, "update_adadelta"},
    [UPDATE + SIMD_ADAMAX]       = {device_image_update, "update_adamax"},
    [UPDATE + SIMD_FTRL]         = {device_image_update, "update_ftrl"},
    [UPDATE + SIMD_LION]         = {device_image_update, "update_lion"},
    [UPDATE + SIMD_LAMB]         = {device_image_update, "update_lamb"},
    [UPDATE_NORMS]               = {device_image_update, "update_lamb_norms"},
};

bool cuda_has_kernel(int which)
{
    return kernel_table[which].name != NULL;
}

static struct loaded {
    CUcontext context;
    int processors;
    struct {
        const unsigned char *image;
        CUmodule module;
    } modules[IMAGES];
    CUfunction kernel[CUDA_KERNELS];
} contexts[CONTEXTS_MAX];

static CUresult load_module(struct loaded *l, const unsigned char *image, CUmodule *module)
{
    int i = 0;
    while (l->modules[i].image != NULL && l->modules[i].image != image) i++; /* at most IMAGES */
    if (l->modules[i].image == NULL) {
        CUresult result = cuda_driver.cuModuleLoadData(&l->modules[i].module, image);
        if (result != CUDA_SUCCESS) return result;
        l->modules[i].image = image;
    }
    *module = l->modules[i].module;
    return CUDA_SUCCESS;
}

/* Loads a kernel into the current context.  With the lock held. */
static CUresult load_kernel(int which, CUfunction *kernel, int *processors)
{
    CUcontext context = NULL;
    CUmodule module   = NULL;
    CUdevice device   = 0;
    CUresult result   = cuda_driver.cuCtxGetCurrent(&context);
    int i             = 0;
    while (i < CONTEXTS_MAX && contexts[i].context != NULL && contexts[i].context != context) i++;
    struct loaded *l = i < CONTEXTS_MAX ? &contexts[i] : NULL;
    if (result != CUDA_SUCCESS || l == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (l->context == NULL) {
        cuda_driver.cuCtxGetDevice(&device);
        result = cuda_driver.cuDeviceGetAttribute(&l->processors,
                                                  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
        if (result != CUDA_SUCCESS) return result;
        l->context = context;
    }
    if (l->kernel[which] == NULL) {
        result = load_module(l, kernel_table[which].image, &module);
        if (result == CUDA_SUCCESS)
            result = cuda_driver.cuModuleGetFunction(&l->kernel[which], module,
                                                     kernel_table[which].name);
    }
    *kernel     = l->kernel[which];
    *processors = l->processors;
    return result;
}

pen_status cuda_launch(int which, void *arguments, uint64_t blocks, unsigned threads,
                       device_stream stream, pen_error *why)
{
    CUfunction kernel = NULL;
    int processors    = 0;
    void *list[]      = {arguments};
    pthread_mutex_lock(&lock);
    CUresult result = load_kernel(which, &kernel, &processors);
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) return cuda_failed(result, "loading a kernel", why);
    const uint64_t full = (uint64_t)processors * 4 * KERNEL_THREADS / threads;
    if (blocks > full) blocks = full;
    if (blocks < 1) blocks = 1;
    result = cuda_driver.cuLaunchKernel(kernel, (unsigned)blocks, 1, 1, threads, 1, 1, 0,
                                        (CUstream)stream, list, NULL);
    return cuda_failed(result, kernel_table[which].name, why);
}

pen_status cuda_launch_work(int which, void *arguments, uint64_t work, device_stream stream,
                            pen_error *why)
{
    return cuda_launch(which, arguments, (work + KERNEL_THREADS - 1) / KERNEL_THREADS,
                       KERNEL_THREADS, stream, why);
}

#endif
