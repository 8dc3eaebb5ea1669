/* update_state_decide.c - the sums of squares, and the verdict of a step. */
#include "worker/train/update/update_state_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- sums of squares ------------------------------------------------------------------------- */
/* The elements of a chunk that lie in a range; both begin at block borders. */
static sharded_range part_of(const plan_chunk *c, const sharded_range *own)
{
    const uint64_t end_c = c->start + c->count, end_o = own->start + own->count;
    const uint64_t from = c->start > own->start ? c->start : own->start;
    const uint64_t to   = end_c < end_o ? end_c : end_o;
    return (sharded_range){.start = from, .count = to > from ? to - from : 0};
}

/* The sums of a range's part of a chunk; NULL: none. */
static double *sums_of(const update_state *r, uint32_t chunk, const sharded_range *part)
{
    const plan_chunk *c = &r->plan->chunk[chunk];
    if (c->blocks == 0 || part->count == 0) return NULL;
    return r->sums + r->first_sum[chunk] + (part->start - c->start) / SIMD_BLOCK;
}

pen_status update_state_measure(update_state *r, pen_error *why)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->plan->n_chunks; i++) {
        const plan_chunk *c            = &r->plan->chunk[i];
        const update_state_tensor *own = &r->tensor[c->tensor];
        const sharded_range part       = part_of(c, &own->own);
        double *sums                   = sums_of(r, i, &part);
        if (sums == NULL) continue;
        r->measure[n++] = (device_norm_span){.x     = own->grad + (part.start - own->own.start),
                                             .n     = part.count,
                                             .sums  = sums,
                                             .chunk = i};
    }
    return r->space.ops->norm(r->measure, n, &r->bad[BAD_SUMS], r->space.stream, why);
}

uint32_t update_state_bad_chunk(const update_state *r)
{
    return r->bad[BAD_SUMS];
}

void update_state_mark_bad(update_state *r, double chunk)
{
    if (chunk >= 0 && chunk < r->plan->n_chunks && chunk < r->bad[BAD_SUMS])
        r->bad[BAD_SUMS] = (uint32_t)chunk;
}

/* Copies the sums of a member's ranges, chunk by chunk; returns their number. */
static size_t walk_sums(const update_state *r, const sharded_range *of, size_t stride, double *to,
                        const double *from)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->plan->n_chunks; i++) {
        const plan_chunk *c      = &r->plan->chunk[i];
        const sharded_range part = part_of(c, &of[(size_t)c->tensor * stride]);
        double *sums             = sums_of(r, i, &part);
        if (sums == NULL) continue;
        const size_t blocks = update_state_blocks_of(part.count);
        if (to != NULL) memcpy(to + n, sums, blocks * sizeof *sums);
        if (from != NULL) memcpy(sums, from + n, blocks * sizeof *sums);
        n += blocks;
    }
    return n;
}

size_t update_state_pack(const update_state *r, const sharded_range *own, size_t stride, double *to)
{
    return walk_sums(r, own, stride, to, NULL);
}

size_t update_state_unpack(update_state *r, const sharded_range *theirs, size_t stride,
                           const double *from)
{
    return walk_sums(r, theirs, stride, NULL, from);
}

size_t update_state_blocks(const update_state *r, const sharded_range *of, size_t stride)
{
    return walk_sums(r, of, stride, NULL, NULL);
}

/* ---- the decision ---------------------------------------------------------------------------- */
static pen_status copy_verdict(update_state *r, const uint32_t *words, pen_error *why)
{
    const memory_space *p = &r->space;
    copied_verdict *c     = update_state_copied(r, r->n_decided);
    const uint64_t at     = r->n_decided % UPDATE_STATE_VERDICTS;
    pen_status status =
        space_copy(p, TRAFFIC_OTHER, &c->verdict, &r->verdict[at], sizeof c->verdict, why);
    r->has_words = words != NULL;
    if (status == PEN_OK && words != NULL)
        status =
            space_copy(p, TRAFFIC_OTHER, c->word, words, (size_t)r->members * sizeof *words, why);
    return status == PEN_OK ? space_record(p, r->arrived[at], why) : status;
}

pen_status update_state_decide(update_state *r, const wire_inputs *inputs, double weight_sum,
                               const uint32_t *words, pen_error *why)
{
    const memory_space *p = &r->space;
    const device_decide d = {.sums       = r->sums,
                             .n_sums     = r->n_sums,
                             .bad        = &r->bad[BAD_SUMS],
                             .own_bad    = &r->bad[BAD_OWN],
                             .stop       = r->stop,
                             .weight_sum = r->n_sums > 0 ? weight_sum : 0,
                             .loss_scale = inputs->loss_scale,
                             .clip       = inputs->clip,
                             .skip       = inputs->skip,
                             .last       = update_state_verdict_at(r, r->n_decided - 1),
                             .verdict    = update_state_verdict_at(r, r->n_decided)};
    for (uint32_t i = 0; i < r->model->n_tensors; i++) {
        free(r->tensor[i].staged);
        r->tensor[i].staged = NULL;
    }
    pen_status status = p->ops->decide(&d, p->stream, why);
    if (status == PEN_OK) status = copy_verdict(r, words, why);
    if (status == PEN_OK)
        status = space_copy(p, TRAFFIC_OTHER, r->bad, r->none, BAD_WORDS * sizeof *r->bad, why);
    r->n_decided += status == PEN_OK;
    return status;
}

const device_verdict *update_state_verdict(const update_state *r)
{
    return space_is_device(&r->space) ? NULL : update_state_verdict_at(r, r->n_decided - 1);
}

pen_status update_state_settle(update_state *r, device_verdict *v, const uint32_t **words,
                               pen_error *why)
{
    const uint64_t at = r->n_settled % UPDATE_STATE_VERDICTS;
    if (space_await(&r->space, r->arrived[at], why) != PEN_OK) return why->status;
    *v     = update_state_copied(r, at)->verdict;
    *words = r->has_words ? update_state_copied(r, at)->word : NULL;
    r->n_settled++;
    if (v->outcome != PEN_APPLIED) return PEN_OK;
    r->applied++;
    for (uint32_t i = 0; i < r->model->n_tensors; i++) {
        const pen_tensor *t = r->model->tensor[i];
        r->tensor[i].version += t->trained && model_rule_of(r->model, t) == STEP_TWO_PHASE;
    }
    return PEN_OK;
}

void update_state_count_step(update_state *r)
{
    r->applied++;
}
