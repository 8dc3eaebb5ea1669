/* gpt2_products_on_host.cpp - cuBLASLt of gpt2's network as plain loops, in stream order. */
#include "launch.h"
#include "device.h"

#include <vector>

struct products {
    int nothing;
};

products *products_new(void)
{
    return (products *)calloc(1, sizeof(products));
}

void products_free(products *p)
{
    free(p);
}

template <typename T> static float at(const matrix<const T> &m, int row, int column)
{
    return widen(m.at[m.is_turned ? (size_t)column * m.ld + row : (size_t)row * m.ld + column]);
}

/* Row by row of the result, in float32: parts of b that are read repeatedly are widened once. */
template <typename T>
static void multiply(int m, int n, int k, matrix<const T> a, matrix<const T> b, float beta,
                     matrix<T> out, const T *bias)
{
    std::vector<float> wide((size_t)k * n), sum(n);
    for (int l = 0; l < k; l++)
        for (int j = 0; j < n; j++) wide[(size_t)l * n + j] = at(b, l, j);
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) sum[j] = bias ? widen(bias[j]) : 0.0f;
        for (int l = 0; l < k; l++) {
            const float x = at(a, i, l), *row = &wide[(size_t)l * n];
            for (int j = 0; j < n; j++) sum[j] += x * row[j];
        }
        T *to = out.at + (size_t)i * out.ld;
        for (int j = 0; j < n; j++)
            narrow(beta == 0.0f ? sum[j] : sum[j] + beta * widen(to[j]), to + j);
    }
}

template <typename T>
bool product(products *, int m, int n, int k, matrix<const T> a, matrix<const T> b, float beta,
             matrix<T> out, const T *bias, void *stream)
{
    host_enqueue(stream, [=] { multiply(m, n, k, a, b, beta, out, bias); });
    return true;
}

#define INSTANCES(T)                                                                               \
    template bool product<T>(products *, int, int, int, matrix<const T>, matrix<const T>, float,   \
                             matrix<T>, const T *, void *)
INSTANCES(float);
INSTANCES(bf16);
