/* sampler.c - one list for all ranks, and each rank's stride through it. */
#include "worker/data/sampler.h"

#include "common/base/why.h"

void sampler_init(sampler *s, int64_t n, uint64_t seed)
{
    *s = (sampler){.n = n, .seed = seed, .at = {.n = n}, .drawn_epoch = -1};
}

void sampler_fini(sampler *s)
{
    permutation_free(&s->order);
}

/* End of the list for this number of ranks, from the present position; never below consumed. */
static int64_t end_of(const sampler *s, int world)
{
    const int64_t left = s->at.consumed < s->n ? s->n - s->at.consumed : 0;
    if (s->is_exact) return s->at.consumed + left;
    const int64_t rounds = s->drops_last ? left / world : (left + world - 1) / world;
    return s->at.consumed + rounds * world;
}

static int64_t entry(const sampler *s, int64_t at)
{
    const uint64_t i = (uint64_t)(at % s->n); /* padding starts the list again */
    return s->shuffles ? (int64_t)permutation_at(&s->order, i) : (int64_t)i;
}

static pen_status draw(sampler *s, pen_error *why)
{
    if (!s->shuffles || s->drawn_epoch == s->at.epoch) return PEN_OK;
    const uint64_t seed     = s->seed + (uint64_t)s->at.epoch;
    const pen_status status = permutation_draw(&s->order, (uint64_t)s->n, seed, why);
    if (status == PEN_OK) s->drawn_epoch = s->at.epoch;
    return status;
}

/* An ended epoch has ended for any number of ranks: samples dropped by drop_last are never used. */
static void advance(sampler *s, int world, size_t want, int64_t end)
{
    const int64_t rounds_left = (end - s->at.consumed + world - 1) / world;
    if (want < (size_t)rounds_left)
        s->at.consumed += (int64_t)want * world;
    else
        s->at.consumed = end > s->n ? end : s->n;
}

/* The position may come from a snapshot, which is not trusted. */
static pen_status check_position(const sampler *s, pen_error *why)
{
    if (s->at.n == s->n && s->at.epoch >= 0 && s->at.consumed >= 0) return PEN_OK;
    return why_set(why, PEN_MISMATCH,
                   "this sampler has %lld samples, but the restored position is sample %lld of "
                   "%lld in epoch %lld; set a position with pen_sampler_seek()",
                   (long long)s->n, (long long)s->at.consumed, (long long)s->at.n,
                   (long long)s->at.epoch);
}

pen_status sampler_next(sampler *s, int world, int rank, int64_t *index, size_t want, size_t *got,
                        pen_error *why)
{
    size_t n = 0;
    if (check_position(s, why) != PEN_OK) return why->status;
    const int64_t end = end_of(s, world);
    if (s->at.consumed < end) {
        if (draw(s, why) != PEN_OK) return why->status;
        for (int64_t at = s->at.consumed + rank; n < want && at < end; at += world)
            index[n++] = entry(s, at);
    }
    advance(s, world, want, end);
    *got = n;
    return n > 0 || want == 0 ? PEN_OK : PEN_END;
}
