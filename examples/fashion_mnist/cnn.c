/* cnn.c - a small convolutional network: two 3 x 3 convolutions with pooling, one dense layer.
 *
 * A convolution is a matrix product over patches, so OpenBLAS does the work.  ReLU follows the pooling: the maximum
 * commutes with it, and only a quarter of the values remains to clip.
 */
#include "layer.h"
#include "model.h"

enum { SIDE_1 = DATA_SIDE, CONV_1 = SIDE_1 - 2, CHANNELS_1 = 16, PATCH_1 = 9 };
enum { SIDE_2 = CONV_1 / 2, CONV_2 = SIDE_2 - 2, CHANNELS_2 = 32, PATCH_2 = 9 * CHANNELS_1 };
enum { SIDE_3 = CONV_2 / 2, FLAT = SIDE_3 * SIDE_3 * CHANNELS_2, OUT = DATA_CLASSES };
enum { W1, B1, W2, B2, W3, B3, TENSORS };

/* clang-format off */
static const model_tensor tensors[TENSORS] = {
    [W1] = {"conv1.weight", 4, {CHANNELS_1, 3, 3, 1},          PATCH_1},
    [B1] = {"conv1.bias",   1, {CHANNELS_1},                   0},
    [W2] = {"conv2.weight", 4, {CHANNELS_2, 3, 3, CHANNELS_1}, PATCH_2},
    [B2] = {"conv2.bias",   1, {CHANNELS_2},                   0},
    [W3] = {"fc.weight",    2, {OUT, FLAT},                    FLAT},
    [B3] = {"fc.bias",      1, {OUT},                          0},
};

/* Floats of one sample in each activation. */
enum {
    PATCHES_1 = CONV_1 * CONV_1 * PATCH_1, OUT_1 = CONV_1 * CONV_1 * CHANNELS_1,
    POOL_1    = SIDE_2 * SIDE_2 * CHANNELS_1,
    PATCHES_2 = CONV_2 * CONV_2 * PATCH_2, OUT_2 = CONV_2 * CONV_2 * CHANNELS_2,
    ALL = PATCHES_1 + OUT_1 + 2 * POOL_1 + PATCHES_2 + OUT_2 + 2 * FLAT
};
/* clang-format on */

/* patches_2, out_1 and out_2 are overwritten by their gradients: nothing reads them afterwards. */
typedef struct {
    float *patches_1, *out_1, *pool_1, *dpool_1;
    float *patches_2, *out_2, *flat, *dflat;
} activations;

static size_t cnn_work_floats(int n)
{
    return (size_t)n * ALL;
}

static activations carve(const model *m)
{
    const size_t rows = (size_t)m->batch_max;
    activations a     = {.patches_1 = m->work};
    a.out_1           = a.patches_1 + rows * PATCHES_1;
    a.pool_1          = a.out_1 + rows * OUT_1;
    a.dpool_1         = a.pool_1 + rows * POOL_1;
    a.patches_2       = a.dpool_1 + rows * POOL_1;
    a.out_2           = a.patches_2 + rows * PATCHES_2;
    a.flat            = a.out_2 + rows * OUT_2;
    a.dflat           = a.flat + rows * FLAT;
    return a;
}

static void cnn_forward(const model *m, int n)
{
    float *const *p     = m->param;
    const activations a = carve(m);

    layer_patches(m->images, a.patches_1, n, SIDE_1, 1);
    layer_dense(a.patches_1, p[W1], p[B1], a.out_1, n * CONV_1 * CONV_1, PATCH_1, CHANNELS_1);
    layer_pool(a.out_1, a.pool_1, n, CONV_1, CHANNELS_1);
    layer_relu(a.pool_1, (size_t)n * POOL_1);

    layer_patches(a.pool_1, a.patches_2, n, SIDE_2, CHANNELS_1);
    layer_dense(a.patches_2, p[W2], p[B2], a.out_2, n * CONV_2 * CONV_2, PATCH_2, CHANNELS_2);
    layer_pool(a.out_2, a.flat, n, CONV_2, CHANNELS_2);
    layer_relu(a.flat, (size_t)n * FLAT);

    layer_dense(a.flat, p[W3], p[B3], m->logits, n, FLAT, OUT);
}

static void cnn_backward(const model *m, int n, model_ready_fn ready, void *user)
{
    float *const *p = m->param, *const *g = m->grad;
    const activations a = carve(m);

    layer_dense_grads(a.flat, m->logits, g[W3], g[B3], n, FLAT, OUT);
    ready(user, W3);
    ready(user, B3);
    layer_dense_input(m->logits, p[W3], a.dflat, n, FLAT, OUT);
    layer_relu_input(a.flat, a.dflat, (size_t)n * FLAT);

    float *dout_2 = a.out_2, *dpatches_2 = a.patches_2, *dout_1 = a.out_1;
    layer_pool_input(dout_2, a.dflat, n, CONV_2, CHANNELS_2);
    layer_dense_grads(a.patches_2, dout_2, g[W2], g[B2], n * CONV_2 * CONV_2, PATCH_2, CHANNELS_2);
    ready(user, W2);
    ready(user, B2);
    layer_dense_input(dout_2, p[W2], dpatches_2, n * CONV_2 * CONV_2, PATCH_2, CHANNELS_2);
    layer_patches_input(dpatches_2, a.dpool_1, n, SIDE_2, CHANNELS_1);
    layer_relu_input(a.pool_1, a.dpool_1, (size_t)n * POOL_1);

    layer_pool_input(dout_1, a.dpool_1, n, CONV_1, CHANNELS_1);
    layer_dense_grads(a.patches_1, dout_1, g[W1], g[B1], n * CONV_1 * CONV_1, PATCH_1, CHANNELS_1);
    ready(user, W1);
    ready(user, B1);
}

const model_ops model_cnn = {
    .name         = "cnn",
    .doc          = "conv 3x3x16, pool, conv 3x3x32, pool, dense 800-10",
    .tensors      = tensors,
    .tensor_count = TENSORS,
    .work_floats  = cnn_work_floats,
    .forward      = cnn_forward,
    .backward     = cnn_backward,
};
