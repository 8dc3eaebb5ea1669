/* model.c - shared by all models: memory, initial values, the loss. */
#include "model.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const model_ops *const model_all[] = {&model_mlp, &model_cnn, NULL};

const model_ops *model_find(const char *name)
{
    for (int i = 0; model_all[i]; i++)
        if (strcmp(model_all[i]->name, name) == 0) return model_all[i];
    return NULL;
}

size_t model_tensor_values(const model_tensor *t)
{
    size_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= (size_t)t->shape[i];
    return n;
}

size_t model_values(const model_ops *ops)
{
    size_t n = 0;
    for (int i = 0; i < ops->tensor_count; i++) n += model_tensor_values(&ops->tensors[i]);
    return n;
}

bool model_init(model *m, const model_ops *ops, int batch_max, float *param, float *grad)
{
    const size_t rows = (size_t)batch_max;
    *m                = (model){.ops = ops, .batch_max = batch_max};
    for (int i = 0; i < ops->tensor_count; i++) {
        m->param[i] = param;
        m->grad[i]  = grad;
        param += model_tensor_values(&ops->tensors[i]);
        grad += model_tensor_values(&ops->tensors[i]);
    }
    m->images = calloc(rows * DATA_PIXELS, sizeof *m->images);
    m->labels = calloc(rows, sizeof *m->labels);
    m->logits = calloc(rows * DATA_CLASSES, sizeof *m->logits);
    m->work   = calloc(ops->work_floats(batch_max), sizeof *m->work);
    if (m->images && m->labels && m->logits && m->work) return true;
    model_fini(m);
    return false;
}

void model_fini(model *m)
{
    free(m->images);
    free(m->labels);
    free(m->logits);
    free(m->work);
    *m = (model){0};
}

void model_start(model *m, uint64_t seed)
{
    for (int t = 0; t < m->ops->tensor_count; t++) {
        const model_tensor *tensor = &m->ops->tensors[t];
        const float bound          = tensor->fan_in ? sqrtf(6.0f / (float)tensor->fan_in) : 0.0f;
        rng r = rng_seeded(~seed, (uint64_t)t); /* ~: differs from the epoch order's stream */
        for (size_t i = 0; i < model_tensor_values(tensor); i++)
            m->param[t][i] = bound * rng_uniform(&r);
    }
}

/* Returns -log softmax(z)[label] and leaves scale * (softmax(z) - onehot(label)) in z. */
static double cross_entropy(float *z, int label, float scale)
{
    float top = z[0], sum = 0.0f;
    for (int c = 1; c < DATA_CLASSES; c++) top = z[c] > top ? z[c] : top;
    const float right = z[label] - top;
    for (int c = 0; c < DATA_CLASSES; c++) sum += z[c] = expf(z[c] - top);
    for (int c = 0; c < DATA_CLASSES; c++) z[c] = scale * (z[c] / sum - (c == label ? 1.0f : 0.0f));
    return log((double)sum) - (double)right;
}

static void zero_gradients(model *m, model_ready_fn ready, void *user)
{
    for (int t = m->ops->tensor_count - 1; t >= 0; t--) {
        memset(m->grad[t], 0, model_tensor_values(&m->ops->tensors[t]) * sizeof *m->grad[t]);
        ready(user, t);
    }
}

double model_forward(model *m, int n, double loss_scale)
{
    double loss = 0.0;
    if (n == 0) return loss;
    const float scale = (float)(loss_scale / n);
    m->ops->forward(m, n);
    for (int i = 0; i < n; i++)
        loss += cross_entropy(m->logits + (size_t)i * DATA_CLASSES, m->labels[i], scale);
    return loss;
}

void model_backward(model *m, int n, model_ready_fn ready, void *user)
{
    if (n == 0)
        zero_gradients(m, ready, user);
    else
        m->ops->backward(m, n, ready, user);
}

double model_train(model *m, int n, double loss_scale, model_ready_fn ready, void *user)
{
    const double loss = model_forward(m, n, loss_scale);
    model_backward(m, n, ready, user);
    return loss;
}

static int best_class(const float *z)
{
    int best = 0;
    for (int c = 1; c < DATA_CLASSES; c++)
        if (z[c] > z[best]) best = c;
    return best;
}

int model_count_right(const model *m, int n)
{
    int right = 0;
    if (n > 0) m->ops->forward(m, n);
    for (int i = 0; i < n; i++)
        right += best_class(m->logits + (size_t)i * DATA_CLASSES) == m->labels[i];
    return right;
}
