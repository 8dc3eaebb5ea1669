/* verdicts.c - reads verdicts in the order of the steps. */
#include "worker/train/update/verdicts.h"

#include "common/base/why.h"
#include "worker/step_decided.h"
#include "worker/step_open.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdlib.h>

enum { SLOTS = UPDATE_STATE_PENDING_MAX + 1 };

pen_status verdicts_init(verdicts *v, pen_ctx *ctx, update_state *state,
                         verdicts_culprit_fn culprit, void *user, pen_error *why)
{
    const size_t n = (size_t)UPDATE_STATE_PENDING_MAX * ctx->model.n_groups;
    *v             = (verdicts){.ctx = ctx, .state = state, .culprit = culprit, .user = user};
    v->rates       = calloc(n + 1, sizeof *v->rates);
    return v->rates != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for rates");
}

void verdicts_fini(verdicts *v)
{
    free(v->rates);
}

pen_status verdicts_add(verdicts *v, const wire_inputs *inputs, double weight_sum,
                        const uint32_t *words, int32_t last, pen_error *why)
{
    if (update_state_decide(v->state, inputs, weight_sum, words, why) != PEN_OK) return why->status;
    v->pending[v->n_added % SLOTS].step = v->ctx->step.next_index;
    v->pending[v->n_added % SLOTS].last = last;
    v->n_added++;
    return PEN_OK;
}

const double *verdicts_rates(verdicts *v, const wire_inputs *inputs)
{
    const uint32_t n = inputs->n_rates, pending = update_state_pending(v->state);
    if (pending <= 1) return inputs->rate;
    for (uint32_t k = 0; k < pending; k++)
        for (uint32_t g = 0; g < n; g++)
            v->rates[k * n + g] = step_rate(v->ctx, g, update_state_applied(v->state) + (int64_t)k);
    return v->rates;
}

void verdicts_find(const uint32_t *words, int n, uint32_t chunk, int32_t *at)
{
    for (int i = n; i-- > 0;)
        if (words[i] == chunk) *at = i;
}

static pen_status settle_one(verdicts *v, pen_error *why)
{
    device_verdict made;
    const uint32_t *words;
    if (update_state_settle(v->state, &made, &words, why) != PEN_OK) {
        device_copies_blame(v->ctx, why);
        return why->status;
    }
    const int64_t step = v->pending[v->n_settled % SLOTS].step;
    const int32_t last = v->pending[v->n_settled % SLOTS].last;
    v->n_settled++;
    if (made.outcome == DEVICE_ABANDONED && device_copies_failure(v->ctx, why) != PEN_OK)
        return why->status;
    if (made.outcome == DEVICE_ABANDONED)
        return why_set(why, PEN_PEER_LOST,
                       "step %lld was not applied: a sum of its gradients has failed",
                       (long long)step);
    const plan *cuts = update_state_plan(v->state);
    if (made.bad_chunk != DEVICE_ALL_FINITE && made.bad_chunk >= cuts->n_chunks)
        return why_set(why, PEN_CORRUPT,
                       "step %lld: a rank says that chunk %u of the gradients is not finite, and "
                       "the model has %u",
                       (long long)step, made.bad_chunk, cuts->n_chunks);
    ps_client_outcome outcome = {.outcome  = made.outcome,
                                 .norm     = made.norm,
                                 .clip     = made.clip,
                                 .applied  = update_state_applied(v->state),
                                 .has_bad  = made.bad_chunk != DEVICE_ALL_FINITE,
                                 .bad_rank = -1};
    if (outcome.has_bad) {
        outcome.bad_tensor = cuts->chunk[made.bad_chunk].tensor;
        if (v->culprit(v->user, made.bad_chunk, made.own_bad == made.bad_chunk, words, last,
                       &outcome.bad_rank, why) != PEN_OK)
            return why->status;
    }
    return step_decided(v->ctx, step, &outcome, update_state_pending(v->state), why);
}

pen_status verdicts_settle(verdicts *v, uint32_t most, pen_error *why)
{
    while (update_state_pending(v->state) > most)
        if (settle_one(v, why) != PEN_OK) return why->status;
    return PEN_OK;
}

pen_status verdicts_end_step(verdicts *v, bool may_be_pending, pen_error *why)
{
    if (!may_be_pending || update_state_verdict(v->state) != NULL)
        return verdicts_settle(v, 0, why);
    step_is_pending(v->ctx);
    return PEN_OK;
}
