/* products.cu - matrix products by cuBLASLt, which is column-major: it gets the transposed problem. */
#include "launch.h"
#include "device.h"

#include <cublasLt.h>
#include <stdlib.h>

enum { CHOICES_MAX = 64 };
static const size_t room_bytes = (size_t)64 << 20;

typedef struct {
    int m, n, k, ld[3], bits; /* the key of a product */
    cublasLtMatmulAlgo_t algorithm;
} choice;

struct products {
    cublasLtHandle_t handle;
    void *room;
    int choices;
    choice choice[CHOICES_MAX];
};

products *products_new(void)
{
    products *p = (products *)calloc(1, sizeof *p);
    if (p && cublasLtCreate(&p->handle) == CUBLAS_STATUS_SUCCESS &&
        cudaMalloc(&p->room, room_bytes) == cudaSuccess)
        return p;
    products_free(p);
    return NULL;
}

void products_free(products *p)
{
    if (!p) return;
    cudaFree(p->room);
    if (p->handle) cublasLtDestroy(p->handle);
    free(p);
}

/* The handles of one call. */
struct problem {
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, out;
};

static cudaDataType type_of(const float *)
{
    return CUDA_R_32F;
}

static cudaDataType type_of(const bf16 *)
{
    return CUDA_R_16BF;
}

static void close_problem(problem *p)
{
    if (p->out) cublasLtMatrixLayoutDestroy(p->out);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->what) cublasLtMatmulDescDestroy(p->what);
}

static bool set(problem *p, cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(p->what, which, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

/* Our rows are their columns: their first factor is our second. */
template <typename T>
static bool open_problem(problem *p, int m, int n, int k, matrix<const T> a, matrix<const T> b,
                         matrix<T> out, const T *bias)
{
    const cudaDataType type              = type_of(out.at);
    const cublasOperation_t first        = b.is_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second       = a.is_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t with_bias   = CUBLASLT_EPILOGUE_BIAS;
    const cublasLtMatrixLayout_t nothing = NULL;
    *p                                   = (problem){NULL, nothing, nothing, nothing};
    bool ok = cublasLtMatmulDescCreate(&p->what, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
                  CUBLAS_STATUS_SUCCESS &&
              set(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) &&
              set(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (bias)
        ok = ok && set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &with_bias, sizeof with_bias) &&
             set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    return ok &&
           cublasLtMatrixLayoutCreate(&p->a, type, b.is_turned ? k : n, b.is_turned ? n : k,
                                      b.ld) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&p->b, type, a.is_turned ? m : k, a.is_turned ? k : m,
                                      a.ld) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&p->out, type, n, m, out.ld) == CUBLAS_STATUS_SUCCESS;
}

static bool is_same(const choice *x, const choice *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->bits == y->bits &&
           x->ld[0] == y->ld[0] && x->ld[1] == y->ld[1] && x->ld[2] == y->ld[2];
}

/* Limits an algorithm's workspace, and states the alignment that gpt2_cuda_place() guarantees. */
static bool describe(cublasLtMatmulPreference_t rule)
{
    const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes = 16;
    for (cublasLtMatmulPreferenceAttributes_t one : alignments)
        if (cublasLtMatmulPreferenceSetAttribute(rule, one, &bytes, sizeof bytes) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    return cublasLtMatmulPreferenceSetAttribute(rule, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &room_bytes,
                                                sizeof room_bytes) == CUBLAS_STATUS_SUCCESS;
}

/* The library's first suggestion, queried once for each kind of product. */
static const choice *choose(products *p, const problem *by, choice wanted)
{
    for (int i = 0; i < p->choices; i++)
        if (is_same(&p->choice[i], &wanted)) return &p->choice[i];
    cublasLtMatmulPreference_t rule = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    const bool ok =
        cublasLtMatmulPreferenceCreate(&rule) == CUBLAS_STATUS_SUCCESS && describe(rule) &&
        cublasLtMatmulAlgoGetHeuristic(p->handle, by->what, by->a, by->b, by->out, by->out, rule, 1,
                                       &found, &n) == CUBLAS_STATUS_SUCCESS;
    if (rule) cublasLtMatmulPreferenceDestroy(rule);
    if (!ok || n == 0) return NULL;
    if (p->choices == CHOICES_MAX)
        p->choices = 0; /* clears the table: querying again is slow, not wrong */
    wanted.algorithm      = found.algo;
    p->choice[p->choices] = wanted;
    return &p->choice[p->choices++];
}

template <typename T>
bool product(products *p, int m, int n, int k, matrix<const T> a, matrix<const T> b, float beta,
             matrix<T> out, const T *bias, void *stream)
{
    const float one = 1.0f;
    problem by;
    bool ok           = open_problem(&by, m, n, k, a, b, out, bias);
    const int bits    = (int)sizeof(T) << 3 | a.is_turned << 2 | b.is_turned << 1 | (bias != NULL);
    const choice want = {m, n, k, {a.ld, b.ld, out.ld}, bits, {}};
    const choice *how = ok ? choose(p, &by, want) : NULL;
    ok = how && cublasLtMatmul(p->handle, by.what, &one, b.at, by.a, a.at, by.b, &beta, out.at,
                               by.out, out.at, by.out, &how->algorithm, p->room, room_bytes,
                               (cudaStream_t)stream) == CUBLAS_STATUS_SUCCESS;
    close_problem(&by);
    return ok;
}

#define INSTANCES(T)                                                                               \
    template bool product<T>(products *, int, int, int, matrix<const T>, matrix<const T>, float,   \
                             matrix<T>, const T *, void *)
INSTANCES(float);
INSTANCES(bf16);
