/* strategy_choice.c - chooses the job's strategy. */
#include "worker/io/thread/io_thread.h"
#include "worker/train/strategy.h"

/* In smaller models the calls inside a node cost more than the pushes they save. */
enum { PAYS_BYTES = 1 << 20 };

/* ---- whether sums of nodes pay ----------------------------------------------------------------- */
static bool is_large_enough(const model *m)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained) bytes += m->tensor[i]->elements * sizeof(float);
    return bytes >= PAYS_BYTES;
}

static bool has_only(const model *m, bool (*is_fine)(const model *m, const pen_tensor *t))
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained && !is_fine(m, m->tensor[i])) return false;
    return true;
}

static bool is_decided(const model *m, const pen_tensor *t)
{
    return model_rule_of(m, t) == STEP_TWO_PHASE;
}

/* A 16-bit sum is rounded once more than its terms. */
static bool is_in_float(const model *m, const pen_tensor *t)
{
    return model_push_dtype(m, t) == PEN_F32;
}

static bool is_worth_it(const pen_ctx *ctx)
{
    const io_committed *job = &io_of(ctx)->committed;
    const model *m          = &ctx->model;
    /* Over sockets the sum of a node costs as much as the pushes it saves. */
    if (!job->has_neighbors || !job->shares_memory) return false;
    if (!is_large_enough(m) || !has_only(m, is_decided)) return false;
    return ctx->settings.deterministic != SUMS_BY_RANK ||
           (job->nodes == 1 && has_only(m, is_in_float));
}

/* The sum of a node needs all its ranks and all their gradients.  In elastic jobs, and if gradients are sharded, each
 * rank pushes its own. */
bool strategy_sums_in_nodes(const pen_ctx *ctx)
{
    const worker_settings *s = &ctx->settings;
    if (context_is_elastic(ctx)) return false;
    if (ctx->mode == MODE_PS_HIER) return true;
    if (ctx->mode != MODE_PS_BSP || s->commit != COMMIT_DECIDE || worker_mode_stage(s->mode) >= 2)
        return false;
    return s->two_level == TWO_LEVEL_YES || (s->two_level == TWO_LEVEL_AUTO && is_worth_it(ctx));
}

/* ---- the choice -------------------------------------------------------------------------------- */
pen_status strategy_open(pen_ctx *ctx, pen_error *why)
{
    if (ctx->has_servers)
        return strategy_sums_in_nodes(ctx) ? two_level_open(ctx, why) : ps_open(ctx, why);
    return sharded_open(ctx, why);
}
