/* mlp.c - the multi-layer perceptron: three dense layers, 235,146 parameters. */
#include "layer.h"
#include "model.h"

enum { IN = DATA_PIXELS, HIDDEN_1 = 256, HIDDEN_2 = 128, OUT = DATA_CLASSES };
enum { W1, B1, W2, B2, W3, B3, TENSORS };

/* clang-format off */
static const model_tensor tensors[TENSORS] = {
    [W1] = {"fc1.weight", 2, {HIDDEN_1, IN},       IN},
    [B1] = {"fc1.bias",   1, {HIDDEN_1},           0},
    [W2] = {"fc2.weight", 2, {HIDDEN_2, HIDDEN_1}, HIDDEN_1},
    [B2] = {"fc2.bias",   1, {HIDDEN_2},           0},
    [W3] = {"fc3.weight", 2, {OUT, HIDDEN_2},      HIDDEN_2},
    [B3] = {"fc3.bias",   1, {OUT},                0},
};
/* clang-format on */

typedef struct {
    float *h1, *dh1; /* [n, HIDDEN_1] */
    float *h2, *dh2; /* [n, HIDDEN_2] */
} activations;

static size_t mlp_work_floats(int n)
{
    return 2 * (size_t)n * (HIDDEN_1 + HIDDEN_2);
}

static activations carve(const model *m)
{
    const size_t rows = (size_t)m->batch_max;
    activations a     = {.h1 = m->work};
    a.dh1             = a.h1 + rows * HIDDEN_1;
    a.h2              = a.dh1 + rows * HIDDEN_1;
    a.dh2             = a.h2 + rows * HIDDEN_2;
    return a;
}

static void mlp_forward(const model *m, int n)
{
    float *const *p     = m->param;
    const activations a = carve(m);
    layer_dense(m->images, p[W1], p[B1], a.h1, n, IN, HIDDEN_1);
    layer_relu(a.h1, (size_t)n * HIDDEN_1);
    layer_dense(a.h1, p[W2], p[B2], a.h2, n, HIDDEN_1, HIDDEN_2);
    layer_relu(a.h2, (size_t)n * HIDDEN_2);
    layer_dense(a.h2, p[W3], p[B3], m->logits, n, HIDDEN_2, OUT);
}

static void mlp_backward(const model *m, int n, model_ready_fn ready, void *user)
{
    float *const *p = m->param, *const *g = m->grad;
    const activations a = carve(m);

    layer_dense_grads(a.h2, m->logits, g[W3], g[B3], n, HIDDEN_2, OUT);
    ready(user, W3);
    ready(user, B3);
    layer_dense_input(m->logits, p[W3], a.dh2, n, HIDDEN_2, OUT);
    layer_relu_input(a.h2, a.dh2, (size_t)n * HIDDEN_2);

    layer_dense_grads(a.h1, a.dh2, g[W2], g[B2], n, HIDDEN_1, HIDDEN_2);
    ready(user, W2);
    ready(user, B2);
    layer_dense_input(a.dh2, p[W2], a.dh1, n, HIDDEN_1, HIDDEN_2);
    layer_relu_input(a.h1, a.dh1, (size_t)n * HIDDEN_1);

    layer_dense_grads(m->images, a.dh1, g[W1], g[B1], n, IN, HIDDEN_1);
    ready(user, W1);
    ready(user, B1);
}

const model_ops model_mlp = {
    .name         = "mlp",
    .doc          = "784-256-128-10",
    .tensors      = tensors,
    .tensor_count = TENSORS,
    .work_floats  = mlp_work_floats,
    .forward      = mlp_forward,
    .backward     = mlp_backward,
};
