/* step_open.c - rates and loss scale at the begin of a step, inputs at its first gradient. */
#include "worker/step_open.h"

#include "common/base/why.h"

#include <stdlib.h>

/* ---- begin ----------------------------------------------------------------------------------- */
static double rate_of(const pen_ctx *ctx, const pen_params *p)
{
    return lr_schedule_rate(&p->rates, p->hyper.lr, ctx->step.applied);
}

double step_rate(const pen_ctx *ctx, uint32_t group, int64_t applied)
{
    const pen_params *p = ctx->model.group[group];
    return lr_schedule_rate(&p->rates, p->hyper.lr, applied) * ctx->step.lr_scale;
}

/* Group 0 comes from the settings and is empty in a program that puts every tensor into its own groups. */
static const pen_params *first_group(const model *m)
{
    uint32_t first = m->n_groups;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained && m->tensor[i]->desc.group < first)
            first = m->tensor[i]->desc.group;
    return m->group[first < m->n_groups ? first : 0];
}

void step_describe(pen_ctx *ctx, pen_step *step)
{
    *step = (pen_step){.index      = ctx->step.next_index,
                       .epoch      = members_epoch(&ctx->members),
                       .loss_scale = ctx->step.scale.scale,
                       .lr         = rate_of(ctx, first_group(&ctx->model)),
                       .accum      = (int32_t)ctx->settings.accum,
                       .flags      = ctx->step.flags,
                       .lr_scale   = 1,
                       .weight     = 1,
                       .clip       = 1,
                       .bad_rank   = -1};
}

/* ---- open ------------------------------------------------------------------------------------ */
/* With servers only rank 0 asks for snapshots; without servers any rank does. */
static bool wants_snapshot(pen_ctx *ctx)
{
    if (ctx->snapshot_writer == NULL && ctx->world->rank != 0) return false;
    const uint64_t every = ctx->settings.snapshot_every;
    bool is_due          = every > 0 && ((uint64_t)ctx->step.next_index + 1) % every == 0;
    return atomic_exchange(&ctx->snapshot_wanted, false) || is_due;
}

/* Servers write a snapshot without asking again, so states are sent with the step's pushes: the
 * shared ones with rank 0's request, and those of each rank with every step, because other ranks do
 * not know of the request. */
static pen_status add_states(pen_ctx *ctx, pen_error *why)
{
    context_step *s = &ctx->step;
    free(s->states);
    s->states = NULL;
    if (ctx->snapshot_writer != NULL)
        return PEN_OK; /* the snapshot writer takes them at the end of the step */
    if (s->inputs.snapshot) own_state_note(ctx, OWN_STATE_UNKNOWN);
    const pen_status status = state_table_pack(&ctx->states, s->inputs.snapshot, &s->states,
                                               &s->inputs.states_bytes, why);
    s->inputs.states        = s->states;
    return status;
}

pen_status step_open(pen_ctx *ctx, pen_error *why)
{
    context_step *s      = &ctx->step;
    const pen_step *step = s->given;
    if (!(step->weight >= 0) || step->weight > 1e300)
        return why_set(why, PEN_INVALID_ARGUMENT, "invalid step.weight %g; expected 0 or more",
                       step->weight);
    if (!(step->lr_scale >= 0) || step->lr_scale > 1e300)
        return why_set(why, PEN_INVALID_ARGUMENT, "invalid step.lr_scale %g; expected 0 or more",
                       step->lr_scale);
    s->weight   = step->weight;
    s->lr_scale = step->lr_scale;
    for (uint32_t g = 0; g < ctx->model.n_groups; g++) s->rate[g] = step_rate(ctx, g, s->applied);
    s->inputs = (wire_inputs){.loss_scale = step->loss_scale,
                              .clip       = ctx->settings.clip,
                              .weight     = s->weight,
                              .skip       = ctx->rule == STEP_TWO_PHASE && ctx->settings.skip,
                              .snapshot   = wants_snapshot(ctx),
                              .n_rates    = ctx->model.n_groups,
                              .rate       = s->rate,
                              .scalars    = s->scalars};
    if (add_states(ctx, why) != PEN_OK) return why->status;
    s->is_open    = true;
    ctx->is_saved = ctx->snapshot_writer == NULL && s->inputs.snapshot;
    ctx->strategy->ops->step_open(ctx->strategy, (uint64_t)s->next_index, &s->inputs);
    return PEN_OK;
}
