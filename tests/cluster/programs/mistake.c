/* mistake.c - makes a typical mistake, and prints the error it gets:  mistake KIND [SETTING...]
 *   late     registers after pen_commit()           early    begins a step before it
 *   unready  does not call pen_ready()              garbage  leaves a descriptor uninitialised
 *   eager    push and pull in a step that clips     size     reduces another number of values on rank 1
 * Ends with 0 if it got an error.
 */
#include "penstock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 8, SETTINGS_MAX = 16 };

typedef struct {
    pen_ctx *ctx;
    pen_tensor *first, *second;
    float w[2][N], g[2][N];
} model;

static pen_status add(model *m, int i, const char *name, pen_tensor **tensor)
{
    return pen_register(
        m->ctx,
        &(pen_tensor_desc){
            .name = name, .ndim = 1, .shape = {N}, .param = m->w[i], .grad = m->g[i]},
        tensor);
}

static pen_status commit(model *m)
{
    pen_status status = add(m, 0, "fc2.weight", &m->first);
    if (status == PEN_OK) status = add(m, 1, "fc2.bias", &m->second);
    return status == PEN_OK ? pen_commit(m->ctx) : status;
}

static pen_status make_late(model *m)
{
    pen_status status = commit(m);
    return status == PEN_OK ? add(m, 0, "more", &m->first) : status;
}

static pen_status make_early(model *m)
{
    pen_step step;
    return pen_step_begin(m->ctx, &step);
}

static pen_status make_unready(model *m)
{
    pen_step step;
    pen_status status = commit(m);
    if (status == PEN_OK) status = pen_step_begin(m->ctx, &step);
    if (status == PEN_OK) status = pen_ready(m->ctx, m->first, PEN_ALL);
    return status == PEN_OK ? pen_step_end(m->ctx, &step) : status;
}

static pen_status make_garbage(model *m)
{
    pen_tensor_desc desc;
    memset(&desc, 0xa5, sizeof desc);
    desc.name  = "w";
    desc.ndim  = 1;
    desc.param = m->w[0];
    desc.grad  = m->g[0];
    memset(desc.shape, 0, sizeof desc.shape);
    desc.shape[0] = N;
    return pen_register(m->ctx, &desc, &m->first);
}

static pen_status make_clip(model *m)
{
    pen_status status = commit(m);
    if (status != PEN_OK) return status;
    return pen_push_pull(m->ctx, m->first, PEN_ALL, NULL, NULL, NULL, NULL);
}

static pen_status make_size(model *m)
{
    double values[N + 1] = {0};
    size_t n             = N + (size_t)(pen_rank(pen_world(m->ctx)) == 1);
    return pen_all_reduce(pen_world(m->ctx), values, values, n, PEN_F64, PEN_SUM,
                          &(pen_opts){.label = "loss"}, NULL);
}

static const struct {
    const char *name;
    pen_status (*make)(model *m);
} kinds[] = {{"late", make_late},       {"early", make_early}, {"unready", make_unready},
             {"garbage", make_garbage}, {"clip", make_clip},   {"size", make_size}};

int main(int argc, char **argv)
{
    static model m;
    const char *settings[SETTINGS_MAX + 2] = {"optim=sgd lr=0.1"};
    for (int i = 2; i < argc && i < SETTINGS_MAX + 2; i++) settings[i - 1] = argv[i];
    pen_status status = pen_init(settings, &m.ctx);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && status == PEN_OK; k++)
        if (argc > 1 && strcmp(argv[1], kinds[k].name) == 0) status = kinds[k].make(&m);
    if (status == PEN_OK) return 1;
    fprintf(stderr, "mistake: %s\n", pen_last_error(NULL));
    if (m.ctx != NULL) status = pen_finalize(m.ctx);
    return 0;
}
