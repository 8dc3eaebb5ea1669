/* passes.c - the loop over the units, and the location of their values. */
#include "passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

/* ---- memory, names, units -------------------------------------------------------------------- */
static gpt2_type type_of(const char *precision)
{
    return strcmp(precision, "bf16") == 0   ? GPT2_BF16
           : strcmp(precision, "fp16") == 0 ? GPT2_F16
                                            : GPT2_F32;
}

static const pen_dtype dtypes[] = {
    [GPT2_F32] = PEN_F32, [GPT2_BF16] = PEN_BF16, [GPT2_F16] = PEN_F16};

static size_t value_bytes(const passes *p)
{
    return type_of(p->plan.precision) == GPT2_F32 ? 4 : 2;
}

/* The tensor with place n in memory, and in the order of registration: stacks have their layers side by side. */
static int in_turn(const passes *p, int n)
{
    const int layers = p->plan.config.layers, k = n - 2;
    if (!p->plan.is_stacked || k < 0 || k >= layers * GPT2_PER_LAYER) return n;
    return 2 + k % layers * GPT2_PER_LAYER + k / layers;
}

static bool make_lists(passes *p)
{
    size_t at  = 0;
    p->tensors = gpt2_tensors(&p->plan.config);
    p->tensor  = calloc((size_t)p->tensors, sizeof *p->tensor);
    p->slice   = calloc((size_t)p->tensors, sizeof *p->slice);
    p->layer   = calloc((size_t)p->tensors, sizeof *p->layer);
    p->at      = calloc((size_t)p->tensors + 1, sizeof *p->at);
    p->unit    = calloc((size_t)p->plan.config.layers, sizeof *p->unit);
    if (!p->tensor || !p->slice || !p->layer || !p->at || !p->unit) return false;
    for (int n = 0; n < p->tensors; n++) {
        gpt2_tensor t;
        const int i = in_turn(p, n);
        gpt2_tensor_get(&p->plan.config, i, &t);
        const bool is_slice = p->plan.is_stacked && t.layer >= 0;
        p->layer[i]         = t.layer;
        p->slice[i]         = is_slice ? t.layer : PEN_ALL;
        p->at[i]            = at;
        at += gpt2_tensor_values(&t) * value_bytes(p);
        if (!is_slice || t.layer + 1 == p->plan.config.layers)
            at = (at + ALIGN - 1) / ALIGN * ALIGN;
    }
    p->at[p->tensors] = at;
    return true;
}

static void *open_one(const passes *p, const gpt2_options *o, void *beside, const char **why)
{
    return p->plan.network->open(&p->plan.config, o, p->plan.device, beside, why);
}

static bool make_networks(passes *p, const char **why)
{
    const passes_plan *plan = &p->plan;
    gpt2_options o          = {.batch     = plan->batch,
                               .length    = plan->length,
                               .type      = type_of(plan->precision),
                               .threads   = plan->threads,
                               .recompute = plan->recompute};
    p->trained              = open_one(p, &o, NULL, why);
    o.batch                 = plan->look_batch;
    o.recompute             = false;
    o.forward_only          = true;
    p->looked               = p->trained ? open_one(p, &o, p->trained, why) : NULL;
    return p->looked != NULL;
}

/* Nearest, ties to even; the values are small and finite. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Converts n float32 values in place. */
static void narrow(gpt2_type type, void *values, size_t n)
{
    for (size_t i = 0; type != GPT2_F32 && i < n; i++) {
        float x;
        memcpy(&x, (char *)values + 4 * i, sizeof x);
        const _Float16 half = (_Float16)x;
        uint16_t bits       = to_bf16(x);
        if (type == GPT2_F16) memcpy(&bits, &half, sizeof bits);
        memcpy((char *)values + 2 * i, &bits, sizeof bits);
    }
}

static const char *start_tensor(passes *p, int index)
{
    gpt2_tensor t;
    gpt2_tensor_get(&p->plan.config, index, &t);
    const size_t n = gpt2_tensor_values(&t);
    float *first   = malloc(n * sizeof *first);
    if (!first) return "no memory for first values";
    gpt2_start(&p->plan.config, index, p->plan.seed, first);
    narrow(type_of(p->plan.precision), first, n);
    const char *wrong =
        p->plan.network->fill(p->trained, p->value + p->at[index], first, n * value_bytes(p));
    free(first);
    return wrong;
}

static bool make_values(passes *p, const char **why)
{
    const pen_space space = p->plan.device < 0 ? PEN_HOST : PEN_CUDA;
    p->value              = pen_alloc(p->ctx, p->at[p->tensors], space);
    p->grad               = p->value ? pen_alloc(p->ctx, p->at[p->tensors], space) : NULL;
    *why                  = p->grad ? NULL : pen_last_error(NULL);
    for (int i = 0; p->plan.starts_here && !*why && i < p->tensors; i++) *why = start_tensor(p, i);
    return !*why;
}

/* "h.0.ln_1.bias" of all layers is one tensor, "h.{}.ln_1.bias". */
static void make_stack(const passes *p, const gpt2_tensor *t, char name[64], pen_tensor_desc *desc)
{
    snprintf(name, 64, "h.{}.%s", t->name + strlen("h.0."));
    memmove(desc->shape + 1, desc->shape, sizeof t->shape);
    desc->name     = name;
    desc->unit     = "h.{}";
    desc->shape[0] = p->plan.config.layers;
    desc->ndim++;
    desc->flags |= PEN_STACKED;
}

/* The SDK records errors; pen_commit() returns them. */
static void register_tensors(passes *p)
{
    for (int n = 0; n < p->tensors; n++) {
        gpt2_tensor t;
        char unit[32], name[64];
        const int i = in_turn(p, n);
        gpt2_tensor_get(&p->plan.config, i, &t);
        if (p->slice[i] > 0) { /* a part of layer 0's stack */
            p->tensor[i] = p->tensor[i - t.layer * GPT2_PER_LAYER];
            continue;
        }
        snprintf(unit, sizeof unit, "h.%d", t.layer);
        pen_tensor_desc desc = {
            .name  = t.name,
            .dtype = dtypes[type_of(p->plan.precision)],
            .ndim  = t.ndim,
            .flags = t.decay ? 0 : PEN_NO_DECAY,
            .unit  = t.layer < 0 ? NULL : unit,
            .param = p->plan.is_held ? NULL : p->value + p->at[i],
            .grad  = p->plan.is_held ? NULL : p->grad + p->at[i],
            .init  = p->plan.starts_here ? NULL : t.init,
        };
        memcpy(desc.shape, t.shape, sizeof t.shape);
        if (p->slice[i] == 0) make_stack(p, &t, name, &desc);
        pen_register(p->ctx, &desc, &p->tensor[i]);
    }
}

double passes_peak(const passes *p)
{
    return p->plan.network->peak(p->trained, p->plan.threads);
}

bool passes_open(passes *p, pen_ctx *ctx, const passes_plan *plan, const char **why)
{
    *p = (passes){.ctx = ctx, .plan = *plan};
    if (!make_networks(p, why)) return false;
    /* All ranks have just met in pen_init(), so they measure at the same time, and no rank waits after pen_commit(). */
    p->peak = passes_peak(p);
    *why    = "no memory for the parameters";
    if (!make_lists(p) || (!plan->is_held && !make_values(p, why))) return false;
    register_tensors(p);
    if ((plan->import && pen_import(ctx, plan->import, NULL) != PEN_OK) ||
        pen_commit(ctx) != PEN_OK) {
        *why = pen_last_error(NULL);
        return false;
    }
    for (int l = 0; l < plan->config.layers; l++) p->unit[l] = pen_unit_get(ctx, "h", l);
    return true;
}

void passes_close(passes *p, bool is_safe)
{
    if (p->plan.network) {
        p->plan.network->close(p->looked);
        p->plan.network->close(p->trained);
    }
    free(p->tensor);
    free(p->slice);
    free(p->layer);
    free(p->at);
    free(p->unit);
    if (is_safe) {
        pen_free(p->value);
        pen_free(p->grad);
    }
    *p = (passes){0};
}

static pen_status last_status(void)
{
    pen_error e;
    pen_last_error(&e);
    return e.status;
}

/* ---- units ----------------------------------------------------------------------------------- */
/* Sets where a unit's tensors are; their gradients too if they are about to be computed. */
static pen_status place(passes *p, void *m, int layer, bool with_grad)
{
    for (int i = 0; i < p->tensors; i++) {
        if (p->layer[i] != layer) continue;
        const bool held = p->plan.is_held;
        const void *value =
            held ? pen_view(p->ctx, p->tensor[i], p->slice[i], PEN_PARAM) : p->value + p->at[i];
        void *grad = NULL;
        if (with_grad)
            grad =
                held ? pen_view(p->ctx, p->tensor[i], p->slice[i], PEN_GRAD) : p->grad + p->at[i];
        if (!value || (with_grad && !grad)) return last_status();
        p->plan.network->place(m, i, value, grad);
    }
    return PEN_OK;
}

static pen_unit *unit_of(const passes *p, int layer)
{
    return layer < 0 ? NULL : p->unit[layer];
}

static pen_status use(passes *p, void *m, int layer, pen_phase phase, bool with_grad)
{
    pen_unit *unit = unit_of(p, layer);
    if (layer < 0 || unit) {
        const pen_status s = pen_use(p->ctx, unit, phase, p->plan.network->stream(m));
        if (s != PEN_OK) return s;
    }
    return place(p, m, layer, with_grad);
}

/* A block without its own unit belongs to the outermost, which is released last: its gradients are ready now. */
static void give_back(passes *p, void *m, int layer, pen_phase phase)
{
    pen_unit *unit = unit_of(p, layer);
    if (layer < 0 || unit) {
        pen_release(p->ctx, unit, phase, p->plan.network->stream(m));
        return;
    }
    for (int i = 0; phase == PEN_BACKWARD && i < p->tensors; i++)
        if (p->layer[i] == layer) pen_ready(p->ctx, p->tensor[i], p->slice[i]);
}

/* m: the network; values passed to it are used on its stream. */
static pen_status forward(passes *p, void *m, const int32_t *tokens, int batch, int length,
                          int from)
{
    pen_status s = use(p, m, -1, PEN_FORWARD, false);
    if (s != PEN_OK) return s;
    p->plan.network->embed(m, tokens, batch, length, from);
    for (int l = 0; l < p->plan.config.layers; l++) {
        if ((s = use(p, m, l, PEN_FORWARD, false)) != PEN_OK) return s;
        p->plan.network->block(m, l);
        give_back(p, m, l, PEN_FORWARD);
    }
    return PEN_OK;
}

static pen_status backward(passes *p, void *m)
{
    for (int l = p->plan.config.layers - 1; l >= 0; l--) {
        const pen_status s = use(p, m, l, PEN_BACKWARD, true);
        if (s != PEN_OK) return s;
        p->plan.network->block_backward(m, l);
        give_back(p, m, l, PEN_BACKWARD);
    }
    p->plan.network->embed_backward(m);
    give_back(p, m, -1, PEN_BACKWARD);
    return PEN_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */
static pen_status heard(passes *p, const char *wrong)
{
    p->wrong = wrong;
    return wrong ? PEN_DEVICE : PEN_OK;
}

const char *passes_why(const passes *p)
{
    return p->wrong ? p->wrong : pen_last_error(NULL);
}

/* The loss is sent with the gradients, so it is read before the first of them.  After its head, a GPU waits for the
 * host here, for the length of a launch. */
static pen_status give_loss(passes *p, const pen_step *step, double *loss)
{
    double part        = 0;
    const pen_status s = heard(p, p->plan.network->loss(p->trained, &part));
    *loss += part / step->accum;
    return s == PEN_OK ? pen_step_scalar(p->ctx, "loss", *loss) : s;
}

pen_status passes_train(passes *p, const pen_step *step, int micro, const int32_t *tokens,
                        const int32_t *targets, double *loss)
{
    void *m      = p->trained;
    pen_status s = pen_step_micro(p->ctx, micro);
    if (s == PEN_OK) s = forward(p, m, tokens, p->plan.batch, p->plan.length, 0);
    if (s == PEN_OK) s = place(p, m, -1, true);
    if (s != PEN_OK) return s;
    p->plan.network->head(m, targets, (float)(step->loss_scale / step->accum));
    s = give_loss(p, step, loss);
    return s == PEN_OK ? backward(p, m) : s;
}

pen_status passes_loss(passes *p, const int32_t *tokens, const int32_t *targets, int batch,
                       double *loss)
{
    const pen_status s = forward(p, p->looked, tokens, batch, p->plan.length, 0);
    if (s != PEN_OK) return s;
    p->plan.network->head_loss(p->looked, targets);
    give_back(p, p->looked, -1, PEN_FORWARD);
    return heard(p, p->plan.network->loss(p->looked, loss));
}

pen_status passes_logits(passes *p, const int32_t *tokens, int count, int from, float *logits)
{
    pen_status s = forward(p, p->looked, tokens, 1, count, from);
    if (s != PEN_OK) return s;
    s = heard(p, p->plan.network->logits(p->looked, count - 1, logits));
    give_back(p, p->looked, -1, PEN_FORWARD);
    return s;
}
