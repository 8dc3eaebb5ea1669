/* update_state_carry_out.c - the update of a step: launches of tensors that are alike. */
#include "worker/train/update/update_state_internal.h"

#include "common/trace/trace.h"

#include <string.h>

/* ---- updates --------------------------------------------------------------------------------- */
void update_state_give(update_state *r, const pen_tensor *t, const float *sum)
{
    r->tensor[t->index].grad = sum;
}

static device_update_span span_of(const update_state *r, const pen_tensor *t)
{
    const update_state_tensor *own = &r->tensor[t->index];
    device_update_span span        = {
               .param = update_state_param_of(r, t), .grad = own->grad, .n = own->own.count};
    memcpy(span.slot, own->slot, sizeof span.slot);
    if (t->desc.dtype != PEN_F32 && !own->is_sharded_out) {
        span.values =
            (char *)space_values(&r->space, t) + own->own.start * plan_dtype_bytes(t->desc.dtype);
        span.values_dtype = t->desc.dtype;
    }
    return span;
}

/* A launch for tensors with the same rule, decay and number of updates. */
typedef struct {
    simd_update row[UPDATE_STATE_PENDING_MAX];
    device_update update;
} launch;

static pen_status run_pass(const update_state *r, launch *l, int pass, pen_error *why)
{
    l->update.pass = pass;
    return r->space.ops->update(&l->update, r->space.stream, why);
}

static pen_status take_roots(const update_state *r, uint32_t n, pen_error *why)
{
    const double *at  = r->whole;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < n && status == PEN_OK; i++) {
        const size_t blocks = update_state_blocks_of(r->model->tensor[r->alike[i]]->elements);
        status              = r->space.ops->roots(at, at + blocks, blocks, r->norms + 2 * (size_t)i,
                                                  r->space.stream, why);
        at += 2 * blocks;
    }
    return status;
}

/* Two passes: the second needs norms of the whole tensors. */
static pen_status update_whole(const update_state *r, launch *l, uint32_t n, pen_error *why)
{
    /* The sums of a tensor's blocks, first those of the parameters; a part has its own blocks, the others are zeros,
     * which change no sum. */
    size_t sums = 0;
    for (uint32_t i = 0; i < n; i++) {
        const pen_tensor *t    = r->model->tensor[r->alike[i]];
        const size_t blocks    = update_state_blocks_of(t->elements);
        const size_t first     = sums + r->tensor[t->index].own.start / SIMD_BLOCK;
        r->span[i].param_sums  = r->whole + first;
        r->span[i].update_sums = r->whole + first + blocks;
        r->span[i].norms       = r->norms + 2 * (size_t)i;
        sums += 2 * blocks;
    }
    pen_status status = PEN_OK;
    if (r->add_up != NULL)
        status = r->space.ops->zero(r->whole, sums * sizeof *r->whole, r->space.stream, why);
    if (status == PEN_OK) status = run_pass(r, l, DEVICE_UPDATE_NORMS, why);
    if (status == PEN_OK && r->add_up != NULL) status = r->add_up(r->user, r->whole, sums, why);
    if (status == PEN_OK) status = take_roots(r, n, why);
    return status == PEN_OK ? run_pass(r, l, DEVICE_UPDATE_APPLY, why) : status;
}

/* Tensors alike[n]. */
static pen_status update_alike(const update_state *r, const double *lr, uint32_t rows, uint32_t n,
                               const device_verdict *verdict, pen_error *why)
{
    launch l;
    const pen_tensor *first = r->model->tensor[r->alike[0]];
    /* lr[rows]: the rate for each number of updates that is possible before this one, from r->applied on. */
    const pen_params *p = r->model->group[first->desc.group];
    const bool no_decay = (first->desc.flags & PEN_NO_DECAY) != 0;
    const uint64_t next = r->tensor[first->index].version + 1;
    for (uint32_t k = 0; k < rows; k++)
        l.row[k] = optim_scalars(p->ops, &p->hyper, lr[k], next + k, no_decay);
    l.update = (device_update){.formula = (int)l.row[0].formula,
                               .row     = l.row,
                               .lr      = lr,
                               .n_rows  = (int)rows,
                               .base    = r->applied,
                               .verdict = verdict,
                               .spans   = r->span,
                               .n       = 1};
    for (uint32_t i = 0; i < n; i++) r->span[i] = span_of(r, r->model->tensor[r->alike[i]]);
    l.update.n = n;
    if (update_state_needs_whole(r, first)) return update_whole(r, &l, n, why);
    return run_pass(r, &l, DEVICE_UPDATE_APPLY, why);
}

static bool are_alike(const update_state *r, const pen_tensor *a, const pen_tensor *b)
{
    return a->desc.group == b->desc.group &&
           (a->desc.flags & PEN_NO_DECAY) == (b->desc.flags & PEN_NO_DECAY) &&
           r->tensor[a->index].version == r->tensor[b->index].version;
}

/* Moves list[i] and all later ones like it to alike[]; returns how many. */
static uint32_t take_alike(update_state *r, const uint32_t *list, uint32_t n, uint32_t i)
{
    const pen_tensor *first = r->model->tensor[list[i]];
    uint32_t found          = 0;
    for (; i < n; i++) {
        if (r->is_done[list[i]] || !are_alike(r, first, r->model->tensor[list[i]])) continue;
        r->is_done[list[i]] = true;
        r->alike[found++]   = list[i];
    }
    return found;
}

/* The factor without a decision.  Sums have weighted gradients; a push that is applied alone was not
 * weighted and is scaled now.  0: nothing to apply. */
static double gscale_alone(ps_client_rule rule, const wire_inputs *in, double weight_sum)
{
    if (weight_sum == 0) return 0;
    return rule == STEP_ASYNC ? in->weight / in->loss_scale : 1 / (weight_sum * in->loss_scale);
}

/* Tensors alike[n], without a decision: on the host only. */
static pen_status update_alone(update_state *r, uint32_t n, double lr, double gscale,
                               pen_error *why)
{
    const device_verdict now = (device_verdict){
        .outcome = PEN_APPLIED, .gscale = gscale, .clip = 1, .applied = r->applied + 1};
    const pen_status status = update_alike(r, &lr, 1, n, &now, why);
    for (uint32_t i = 0; i < n; i++) r->tensor[r->alike[i]].version++;
    return status;
}

static pen_status carry_out_alike(update_state *r, uint32_t n, const wire_inputs *inputs,
                                  double weight_sum, const double *rates, pen_error *why)
{
    const pen_tensor *like    = r->model->tensor[r->alike[0]];
    const ps_client_rule rule = model_rule_of(r->model, like);
    const uint32_t rows       = rule == STEP_TWO_PHASE ? update_state_pending(r) : 1;
    double lr[UPDATE_STATE_PENDING_MAX];
    for (uint32_t k = 0; k < rows; k++) lr[k] = rates[k * inputs->n_rates + like->desc.group];
    if (rule == STEP_TWO_PHASE)
        return update_alike(r, lr, rows, n, update_state_verdict_at(r, r->n_decided - 1), why);
    const double gscale = gscale_alone(rule, inputs, weight_sum);
    return gscale != 0 ? update_alone(r, n, lr[0], gscale, why) : PEN_OK;
}

pen_status update_state_carry_out(update_state *r, const uint32_t *list, uint32_t n,
                                  const wire_inputs *inputs, double weight_sum, const double *rates,
                                  pen_error *why)
{
    const uint64_t begun = trace_begin();
    pen_status status    = PEN_OK;
    for (uint32_t i = 0; i < n; i++) r->is_done[list[i]] = false;
    for (uint32_t i = 0; i < n && status == PEN_OK; i++)
        if (!r->is_done[list[i]])
            status = carry_out_alike(r, take_alike(r, list, n, i), inputs, weight_sum, rates, why);
    if (n > 0)
        trace_span(TRACE_UPDATE, begun, &(trace_note){.label = r->model->tensor[list[0]]->name});
    return status;
}

bool update_state_gscale(const update_state *r, const pen_tensor *t, const wire_inputs *inputs,
                         double weight_sum, double *gscale)
{
    const ps_client_rule rule  = model_rule_of(r->model, t);
    const device_verdict *made = rule == STEP_TWO_PHASE ? update_state_verdict(r) : NULL;
    *gscale = made != NULL ? made->gscale : gscale_alone(rule, inputs, weight_sum);
    return made != NULL ? made->outcome == PEN_APPLIED : *gscale != 0;
}

pen_status update_state_update(update_state *r, const pen_tensor *t, double lr, double gscale,
                               pen_error *why)
{
    r->alike[0] = t->index;
    return update_alone(r, 1, lr, gscale, why);
}
