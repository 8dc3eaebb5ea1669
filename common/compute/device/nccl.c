/* nccl.c - NCCL by dlopen. */
#include "common/compute/device/nccl.h"

#include "common/base/why.h"

/* NCCL truncates integer averages differently, and its minimum and maximum do not pass NaN on. */
bool nccl_fits(pen_op op, pen_dtype dtype, bool is_deterministic)
{
    const bool is_integer = dtype >= PEN_I8 && dtype <= PEN_U64;
    if (is_integer) return op == PEN_SUM || op == PEN_PROD || op == PEN_MIN || op == PEN_MAX;
    if (dtype != PEN_F32 && dtype != PEN_F16 && dtype != PEN_BF16 && dtype != PEN_F64) return false;
    return !is_deterministic && (op == PEN_SUM || op == PEN_PROD);
}

#if defined(PENSTOCK_CUDA) && __has_include(<nccl.h>)

#include "common/base/clock.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <nccl.h>
#pragma GCC diagnostic pop

/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) X(ncclAllReduce)         \
    X(ncclCommAbort) X(ncclCommDestroy) X(ncclGetErrorString)
/* clang-format on */
#define POINTER(function)  __typeof__(function) *function;
#define FIND(function)     *(void **)&library.function = dlsym(handle, #function);
#define IS_THERE(function) &&library.function != NULL

static struct {
    NCCL_FUNCTIONS(POINTER)
} library;

static bool is_found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_all(void)
{
    void *handle = dlopen("libnccl.so.2", RTLD_LAZY);
    if (handle == NULL) return;
    NCCL_FUNCTIONS(FIND)
    is_found = true NCCL_FUNCTIONS(IS_THERE);
}

enum { ENQUEUE_MS = 2000, NCCL_NAME_FITS = sizeof(ncclUniqueId) == NCCL_NAME_BYTES };
_Static_assert(NCCL_NAME_FITS, "a name is an ncclUniqueId");

typedef struct {
    ncclComm_t comm;
    bool is_aborted;
} nccl_link;

static pen_status status_of(ncclResult_t result, const char *what, pen_error *why)
{
    if (result == ncclSuccess) return PEN_OK;
    if (result == ncclInProgress) return PEN_AGAIN;
    return why_set(why, PEN_DEVICE, "NCCL: %s: %s (%d)", what, library.ncclGetErrorString(result),
                   result);
}

static pen_status nccl_name(uint8_t name[NCCL_NAME_BYTES], pen_error *why)
{
    ncclUniqueId id;
    pen_status status = status_of(library.ncclGetUniqueId(&id), "naming", why);
    if (status == PEN_OK) memcpy(name, &id, sizeof id);
    return status;
}

static pen_status nccl_open(const uint8_t name[NCCL_NAME_BYTES], int size, int rank, void **link,
                            pen_error *why)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    nccl_link *l = calloc(1, sizeof *l);
    if (l == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for NCCL");
    memcpy(&id, name, sizeof id);
    config.blocking   = 0;
    pen_status status = status_of(library.ncclCommInitRankConfig(&l->comm, size, id, rank, &config),
                                  "meeting", why);
    if (status != PEN_OK && status != PEN_AGAIN) {
        free(l);
        return status;
    }
    *link = l;
    return PEN_OK;
}

static pen_status nccl_ready(void *link, pen_error *why)
{
    ncclResult_t state  = ncclSuccess;
    ncclResult_t result = library.ncclCommGetAsyncError(((nccl_link *)link)->comm, &state);
    return status_of(result == ncclSuccess ? state : result, "meeting", why);
}

/* In NCCL's numbers. */
static ncclDataType_t type_of(pen_dtype dtype)
{
    switch (dtype) {
    case PEN_F16: return ncclFloat16;
    case PEN_BF16: return ncclBfloat16;
    case PEN_F64: return ncclFloat64;
    case PEN_I8: return ncclInt8;
    case PEN_U8: return ncclUint8;
    case PEN_I32: return ncclInt32;
    case PEN_U32: return ncclUint32;
    case PEN_I64: return ncclInt64;
    case PEN_U64: return ncclUint64;
    default: return ncclFloat32;
    }
}

static ncclRedOp_t op_of(pen_op op)
{
    if (op == PEN_PROD) return ncclProd;
    if (op == PEN_MIN) return ncclMin;
    return op == PEN_MAX ? ncclMax : ncclSum;
}

/* NCCL may still be enqueuing in its own thread.  That is short, and later work must follow it in the stream. */
static pen_status nccl_all_reduce(void *link, const void *in, void *out, size_t n, pen_dtype dtype,
                                  pen_op op, device_stream stream, pen_error *why)
{
    nccl_link *l         = link;
    const uint64_t until = clock_ms(&clock_real) + ENQUEUE_MS;
    pen_status status    = status_of(
           library.ncclAllReduce(in, out, n, type_of(dtype), op_of(op), l->comm, (cudaStream_t)stream),
           "all_reduce", why);
    while (status == PEN_AGAIN && clock_ms(&clock_real) < until) {
        sched_yield();
        status = nccl_ready(l, why);
    }
    if (status != PEN_AGAIN) return status;
    return why_set(why, PEN_TIMED_OUT, "NCCL did not take an all_reduce within %d ms", ENQUEUE_MS);
}

static void nccl_abort(void *link)
{
    nccl_link *l = link;
    if (!l->is_aborted) library.ncclCommAbort(l->comm);
    l->is_aborted = true;
}

static void nccl_close(void *link)
{
    nccl_link *l = link;
    if (!l->is_aborted) library.ncclCommDestroy(l->comm);
    free(l);
}

static const nccl_table table = {
    .name       = nccl_name,
    .open       = nccl_open,
    .ready      = nccl_ready,
    .all_reduce = nccl_all_reduce,
    .abort      = nccl_abort,
    .close      = nccl_close,
};

const nccl_table *nccl_find(void)
{
    pthread_once(&once, find_all);
    return is_found ? &table : NULL;
}

#else

const nccl_table *nccl_find(void)
{
    return NULL;
}

#endif
