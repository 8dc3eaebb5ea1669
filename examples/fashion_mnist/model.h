/* model.h - what a model is: named tensors, a forward and a backward pass over one batch.
 *
 * To add a model: write <name>.c with one `const model_ops` and add it to the array in model.c.
 */
#ifndef FASHION_MNIST_MODEL_H
#define FASHION_MNIST_MODEL_H

#include "data.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_TENSORS_MAX = 8, MODEL_DIMS_MAX = 4 };

typedef struct {
    const char *name;
    int ndim;
    int64_t shape[MODEL_DIMS_MAX];
    int fan_in; /* weights start uniform in +-sqrt(6 / fan_in) (He et al., ICCV 2015); 0: at zero */
} model_tensor;

typedef struct {
    const struct model_ops *ops;
    int batch_max;
    /* into the caller's two flat buffers, in order of ops->tensors */
    float *param[MODEL_TENSORS_MAX];
    float *grad[MODEL_TENSORS_MAX];
    float *images;   /* [batch_max, DATA_PIXELS]  the batch: written by the caller */
    uint8_t *labels; /* [batch_max]                                                */
    float *logits;   /* [batch_max, DATA_CLASSES] replaced by its gradient */
    float *work;     /* [ops->work_floats(batch_max)] activations and their gradients */
} model;

/* Called when a gradient is final, so that it can be sent while the others are computed. */
typedef void (*model_ready_fn)(void *user, int tensor);

typedef struct model_ops {
    const char *name;
    const char *doc; /* its layers, for the header line */
    const model_tensor *tensors;
    int tensor_count;
    size_t (*work_floats)(int n);
    void (*forward)(const model *m, int n); /* images -> logits */
    void (*backward)(const model *m, int n, model_ready_fn ready,
                     void *user); /* logits -> grad   */
} model_ops;

extern const model_ops model_mlp, model_cnn;
const model_ops *model_find(const char *name); /* NULL when unknown */

size_t model_tensor_values(const model_tensor *t);
size_t model_values(const model_ops *ops);

/* param and grad, [model_values(ops)] floats each, are BORROWED until model_fini.  False: no memory. */
bool model_init(model *m, const model_ops *ops, int batch_max, float *param, float *grad);
void model_fini(model *m);

/* Initial values, a pure function of seed: every rank starts with the same bits. */
void model_start(model *m, uint64_t seed);

/* One pass over the n samples in m->images: grad is the gradient of their mean loss (softmax cross entropy) times
 * loss_scale.  Returns the SUM of their losses.  n = 0: all gradients are zero.  Forward and backward pass:
 * model_backward() uses the state of the last model_forward(). */
double model_forward(model *m, int n, double loss_scale);
void model_backward(model *m, int n, model_ready_fn ready, void *user);
double model_train(model *m, int n, double loss_scale, model_ready_fn ready, void *user);

/* Number of the n samples in m->images that are classified correctly. */
int model_count_right(const model *m, int n);

#endif
