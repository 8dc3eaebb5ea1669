/* layer.h - the layers of both models.  Matrices are row-major float32; n counts rows.
 *
 * Each is a pure function of its inputs: the same bits for the same number of BLAS threads.
 */
#ifndef FASHION_MNIST_LAYER_H
#define FASHION_MNIST_LAYER_H

#include <stddef.h>

/* y[n,out] = x[n,in] w[out,in]^T + b[out] */
void layer_dense(const float *x, const float *w, const float *b, float *y, int n, int in, int out);
/* dw[out,in] = dy^T x and db[out] = column sums of dy */
void layer_dense_grads(const float *x, const float *dy, float *dw, float *db, int n, int in,
                       int out);
/* dx[n,in] = dy[n,out] w[out,in] */
void layer_dense_input(const float *dy, const float *w, float *dx, int n, int in, int out);

void layer_relu(float *y, size_t n);                        /* in place */
void layer_relu_input(const float *y, float *dy, size_t n); /* dy = 0 where y = 0 */

/* Images are [n, side, side, channels].  A 3 x 3 convolution without border is layer_dense over the patches [n *
 * (side-2)^2, 9 * channels], which layer_patches() builds. */
void layer_patches(const float *x, float *patches, int n, int side, int channels);
/* Its gradient: dx sums up where patches overlap. */
void layer_patches_input(const float *dpatches, float *dx, int n, int side, int channels);

/* 2 x 2 maximum: [n, side, side, channels] -> [n, side/2, side/2, channels]; ignores an odd last row and column. */
void layer_pool(const float *x, float *y, int n, int side, int channels);
/* Overwrites x with its gradient: dy where x was (first) largest, else 0. */
void layer_pool_input(float *x, const float *dy, int n, int side, int channels);

#endif
