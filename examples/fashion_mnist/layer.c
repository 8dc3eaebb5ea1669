/* layer.c - dense, ReLU, convolution patches and pooling. */
#include "layer.h"

#include <cblas.h>
#include <string.h>

void layer_dense(const float *x, const float *w, const float *b, float *y, int n, int in, int out)
{
    for (int i = 0; i < n; i++) memcpy(y + (size_t)i * out, b, (size_t)out * sizeof *b);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1.0f, x, in, w, in, 1.0f, y,
                out);
}

void layer_dense_grads(const float *x, const float *dy, float *dw, float *db, int n, int in,
                       int out)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1.0f, dy, out, x, in, 0.0f, dw,
                in);
    memset(db, 0, (size_t)out * sizeof *db);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < out; j++) db[j] += dy[(size_t)i * out + j];
}

void layer_dense_input(const float *dy, const float *w, float *dx, int n, int in, int out)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, in, out, 1.0f, dy, out, w, in, 0.0f,
                dx, in);
}

void layer_relu(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = y[i] < 0.0f ? 0.0f : y[i]; /* NaN stays NaN */
}

void layer_relu_input(const float *y, float *dy, size_t n)
{
    for (size_t i = 0; i < n; i++) dy[i] = y[i] == 0.0f ? 0.0f : dy[i];
}

/* Start of the image row where kernel row k of patch row (i, y) begins. */
static size_t row_start(int i, int y, int k, int side, int channels)
{
    return ((size_t)i * side + y + k) * side * channels;
}

void layer_patches(const float *x, float *patches, int n, int side, int channels)
{
    const size_t run = 3 * (size_t)channels; /* three neighbours are contiguous in memory */
    for (int i = 0; i < n; i++)
        for (int y = 0; y < side - 2; y++)
            for (int column = 0; column < side - 2; column++)
                for (int k = 0; k < 3; k++, patches += run)
                    memcpy(patches,
                           x + row_start(i, y, k, side, channels) + (size_t)column * channels,
                           run * sizeof *x);
}

void layer_patches_input(const float *dpatches, float *dx, int n, int side, int channels)
{
    const size_t run = 3 * (size_t)channels;
    memset(dx, 0, (size_t)n * side * side * channels * sizeof *dx);
    for (int i = 0; i < n; i++)
        for (int y = 0; y < side - 2; y++)
            for (int column = 0; column < side - 2; column++)
                for (int k = 0; k < 3; k++, dpatches += run) {
                    float *to = dx + row_start(i, y, k, side, channels) + (size_t)column * channels;
                    for (size_t c = 0; c < run; c++) to[c] += dpatches[c];
                }
}

static float larger(float a, float b)
{
    return a < b ? b : a;
}

void layer_pool(const float *x, float *y, int n, int side, int channels)
{
    const size_t row = (size_t)side * channels;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < side / 2; r++) {
            const float *top = x + ((size_t)i * side + 2 * (size_t)r) * row, *low = top + row;
            for (int column = 0; column < side / 2;
                 column++, top += 2 * channels, low += 2 * channels)
                for (int c = 0; c < channels; c++)
                    *y++ = larger(larger(top[c], top[c + channels]),
                                  larger(low[c], low[c + channels]));
        }
}

/* One window of one channel: a, b above c, d. */
static void route(float *a, float *b, float *c, float *d, float grad)
{
    float *best = *a < *b ? b : a;
    float *low  = *c < *d ? d : c;
    if (*best < *low) best = low;
    *a = *b = *c = *d = 0.0f;
    *best             = grad;
}

static void clear_border(float *image, int side, int channels)
{
    const size_t row = (size_t)side * channels;
    for (int r = 0; r < side; r++)
        memset(image + (r + 1) * row - channels, 0, (size_t)channels * sizeof *image);
    memset(image + (side - 1) * row, 0, row * sizeof *image);
}

void layer_pool_input(float *x, const float *dy, int n, int side, int channels)
{
    const size_t row = (size_t)side * channels;
    for (int i = 0; i < n; i++, x += side * row) {
        for (int r = 0; r < side / 2; r++) {
            float *top = x + 2 * (size_t)r * row, *low = top + row;
            for (int column = 0; column < side / 2;
                 column++, top += 2 * channels, low += 2 * channels)
                for (int c = 0; c < channels; c++)
                    route(top + c, top + c + channels, low + c, low + c + channels, *dy++);
        }
        if (side % 2) clear_border(x, side, channels);
    }
}
