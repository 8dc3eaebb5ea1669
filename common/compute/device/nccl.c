/* nccl.c - NCCL by dlopen.
 *
 * Its header is not needed to build, because a machine without NCCL builds for machines that have it.  The few types
 * are declared here, as NCCL's stable ABI has had them since 2.14; where the header is found, the compiler compares.
 */
#include "common/compute/device/nccl.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/system/library.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* NCCL truncates integer averages differently, and its minimum and maximum do not pass NaN on. */
bool nccl_fits(pen_op op, pen_dtype dtype, bool is_deterministic)
{
    const bool is_integer = dtype >= PEN_I8 && dtype <= PEN_U64;
    if (is_integer) return op == PEN_SUM || op == PEN_PROD || op == PEN_MIN || op == PEN_MAX;
    if (dtype != PEN_F32 && dtype != PEN_F16 && dtype != PEN_BF16 && dtype != PEN_F64) return false;
    return !is_deterministic && (op == PEN_SUM || op == PEN_PROD);
}

/* ---- its ABI --------------------------------------------------------------------------------------- */

typedef struct {
    char bytes[NCCL_NAME_BYTES];
} unique_id;

/* The first fields of ncclConfig_t; NCCL reads as many as `size` says, and as `version` knows. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} configuration;

enum { CONFIG_MAGIC = (int)0xcafebeef, CONFIG_VERSION = 21400 };
enum { RESULT_SUCCESS, RESULT_IN_PROGRESS = 7 };
enum { OP_SUM, OP_PROD, OP_MAX, OP_MIN };
enum {
    TYPE_INT8,
    TYPE_UINT8,
    TYPE_INT32,
    TYPE_UINT32,
    TYPE_INT64,
    TYPE_UINT64,
    TYPE_FLOAT16,
    TYPE_FLOAT32,
    TYPE_FLOAT64,
    TYPE_BFLOAT16
};

#if defined(PENSTOCK_CUDA) && __has_include(<nccl.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <nccl.h>
#pragma GCC diagnostic pop
#define SAME(mine, theirs) _Static_assert((int)(mine) == (int)(theirs), "as in nccl.h")
SAME(sizeof(unique_id), sizeof(ncclUniqueId));
SAME(offsetof(configuration, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(configuration, version), offsetof(ncclConfig_t, version));
SAME(offsetof(configuration, blocking), offsetof(ncclConfig_t, blocking));
SAME(CONFIG_VERSION, NCCL_VERSION(2, 14, 0));
SAME(RESULT_SUCCESS, ncclSuccess);
SAME(RESULT_IN_PROGRESS, ncclInProgress);
SAME(OP_SUM, ncclSum);
SAME(OP_PROD, ncclProd);
SAME(OP_MAX, ncclMax);
SAME(OP_MIN, ncclMin);
SAME(TYPE_INT8, ncclInt8);
SAME(TYPE_UINT8, ncclUint8);
SAME(TYPE_INT32, ncclInt32);
SAME(TYPE_UINT32, ncclUint32);
SAME(TYPE_INT64, ncclInt64);
SAME(TYPE_UINT64, ncclUint64);
SAME(TYPE_FLOAT16, ncclFloat16);
SAME(TYPE_FLOAT32, ncclFloat32);
SAME(TYPE_FLOAT64, ncclFloat64);
SAME(TYPE_BFLOAT16, ncclBfloat16);
#endif

/* Its name, and its arguments after the result. */
/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(ncclGetUniqueId, unique_id *)                                                                \
    X(ncclCommInitRankConfig, void **comm, int size, unique_id, int rank, configuration *)         \
    X(ncclCommGetAsyncError, void *comm, int *state)                                               \
    X(ncclCommFinalize, void *comm)                                                                \
    X(ncclCommDestroy, void *comm)                                                                 \
    X(ncclCommAbort, void *comm)                                                                   \
    X(ncclGroupStart, void)                                                                        \
    X(ncclGroupEnd, void)                                                                          \
    X(ncclAllReduce, const void *in, void *out, size_t, int type, int op, void *comm, void *)      \
    X(ncclReduce, const void *in, void *out, size_t, int type, int op, int root, void *comm, void *) \
    X(ncclReduceScatter, const void *in, void *out, size_t, int type, int op, void *comm, void *)  \
    X(ncclAllGather, const void *in, void *out, size_t, int type, void *comm, void *)              \
    X(ncclBroadcast, const void *in, void *out, size_t, int type, int root, void *comm, void *)
/* clang-format on */
#define POINTER(function, ...) int (*function)(__VA_ARGS__);
#define NAME(function, ...)    #function,

static struct {
    NCCL_FUNCTIONS(POINTER)
    const char *(*text)(int result);
} library;

static bool is_found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_all(void)
{
    static const char *const names[] = {NCCL_FUNCTIONS(NAME) "ncclGetErrorString"};
    is_found =
        library_load("libnccl.so.2", names, sizeof names / sizeof *names, &library, NULL) == PEN_OK;
}

static pen_status status_of(int result, const char *what, pen_error *why)
{
    if (result == RESULT_SUCCESS) return PEN_OK;
    if (result == RESULT_IN_PROGRESS) return PEN_AGAIN;
    return why_set(why, PEN_DEVICE, "NCCL: %s: %s (%d)", what, library.text(result), result);
}

/* In NCCL's numbers. */
static int type_of(pen_dtype dtype)
{
    switch (dtype) {
    case PEN_F16: return TYPE_FLOAT16;
    case PEN_BF16: return TYPE_BFLOAT16;
    case PEN_F64: return TYPE_FLOAT64;
    case PEN_I8: return TYPE_INT8;
    case PEN_U8: return TYPE_UINT8;
    case PEN_I32: return TYPE_INT32;
    case PEN_U32: return TYPE_UINT32;
    case PEN_I64: return TYPE_INT64;
    case PEN_U64: return TYPE_UINT64;
    default: return TYPE_FLOAT32;
    }
}

static size_t bytes_of(pen_dtype dtype)
{
    switch (dtype) {
    case PEN_I8:
    case PEN_U8: return 1;
    case PEN_F16:
    case PEN_BF16: return 2;
    case PEN_F64:
    case PEN_I64:
    case PEN_U64: return 8;
    default: return 4;
    }
}

static int op_of(pen_op op)
{
    if (op == PEN_PROD) return OP_PROD;
    if (op == PEN_MIN) return OP_MIN;
    return op == PEN_MAX ? OP_MAX : OP_SUM;
}

/* ---- links ----------------------------------------------------------------------------------------- */

typedef struct {
    void *comm;
    int size, rank;
    bool is_aborted;
} nccl_link;

static pen_status nccl_name(uint8_t name[NCCL_NAME_BYTES], pen_error *why)
{
    unique_id id;
    pen_status status = status_of(library.ncclGetUniqueId(&id), "naming", why);
    if (status == PEN_OK) memcpy(name, &id, sizeof id);
    return status;
}

static pen_status nccl_open(const uint8_t name[NCCL_NAME_BYTES], int size, int rank, void **link,
                            pen_error *why)
{
    configuration config = {
        .size = sizeof config, .magic = (unsigned)CONFIG_MAGIC, .version = CONFIG_VERSION};
    unique_id id;
    nccl_link *l = calloc(1, sizeof *l);
    if (l == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for NCCL");
    *l = (nccl_link){.size = size, .rank = rank};
    memcpy(&id, name, sizeof id);
    pen_status status = status_of(library.ncclCommInitRankConfig(&l->comm, size, id, rank, &config),
                                  "meeting", why);
    if (status != PEN_OK && status != PEN_AGAIN) {
        if (l->comm != NULL) library.ncclCommAbort(l->comm);
        free(l);
        return status;
    }
    *link = l;
    return PEN_OK;
}

static pen_status nccl_ready(void *link, pen_error *why)
{
    int state        = RESULT_SUCCESS;
    const int result = library.ncclCommGetAsyncError(((nccl_link *)link)->comm, &state);
    return status_of(result == RESULT_SUCCESS ? state : result, "a link between devices", why);
}

static void nccl_abort(void *link)
{
    nccl_link *l = link;
    if (!l->is_aborted) library.ncclCommAbort(l->comm);
    l->is_aborted = true;
}

/* Memory of one member is used by the others until all have finalized. */
static void nccl_close(void *link)
{
    nccl_link *l         = link;
    const uint64_t until = clock_ms(&clock_real) + NCCL_CLOSE_MS;
    pen_status status    = PEN_DEVICE;
    if (!l->is_aborted) status = status_of(library.ncclCommFinalize(l->comm), "closing", NULL);
    while (status == PEN_AGAIN && clock_ms(&clock_real) < until) {
        sched_yield();
        status = nccl_ready(l, NULL);
    }
    if (status == PEN_OK)
        library.ncclCommDestroy(l->comm);
    else
        nccl_abort(l);
    free(l);
}

/* ---- calls ----------------------------------------------------------------------------------------- */

/* Parts of different lengths are as many broadcasts, which NCCL runs as one call. */
static int gather_parts(const nccl_link *l, const nccl_call *c, size_t width, void *stream)
{
    char *to   = c->out;
    int result = library.ncclGroupStart();
    if (result != RESULT_SUCCESS) return result;
    for (int i = 0; i < l->size; i++) {
        if (c->counts[i] > 0 && result == RESULT_SUCCESS)
            result = library.ncclBroadcast(i == l->rank ? c->in : to, to, c->counts[i] * width,
                                           TYPE_UINT8, i, l->comm, stream);
        if (result == RESULT_IN_PROGRESS) result = RESULT_SUCCESS;
        to += c->counts[i] * width;
    }
    const int ended = library.ncclGroupEnd();
    return result == RESULT_SUCCESS ? ended : result;
}

static int begin(const nccl_link *l, const nccl_call *c, void *stream)
{
    const int type = type_of(c->dtype), op = op_of(c->op);
    const size_t width = bytes_of(c->dtype);
    switch (c->kind) {
    case NCCL_ALL_REDUCE:
        return library.ncclAllReduce(c->in, c->out, c->n, type, op, l->comm, stream);
    case NCCL_REDUCE:
        return library.ncclReduce(c->in, c->out, c->n, type, op, c->root, l->comm, stream);
    case NCCL_REDUCE_SCATTER:
        return library.ncclReduceScatter(c->in, c->out, c->n, type, op, l->comm, stream);
    case NCCL_ALL_GATHER:
        if (c->counts != NULL) return gather_parts(l, c, width, stream);
        return library.ncclAllGather(c->in, c->out, c->n * width, TYPE_UINT8, l->comm, stream);
    default:
        return library.ncclBroadcast(l->rank == c->root ? c->in : c->out,
                                     l->rank == c->root ? (void *)(uintptr_t)c->in : c->out,
                                     c->n * width, TYPE_UINT8, c->root, l->comm, stream);
    }
}

static pen_status nccl_start(void *link, const nccl_call *call, device_stream stream,
                             pen_error *why)
{
    return status_of(begin(link, call, stream), "enqueuing a call", why);
}

static const nccl_table table = {
    .name  = nccl_name,
    .open  = nccl_open,
    .start = nccl_start,
    .ready = nccl_ready,
    .abort = nccl_abort,
    .close = nccl_close,
};

const nccl_table *nccl_find(void)
{
    pthread_once(&once, find_all);
    return is_found ? &table : NULL;
}
