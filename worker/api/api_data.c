/* api_data.c - samplers, and the rate of a schedule. */
#include "worker/api/api.h"

#include "common/system/fp_env.h"

#include "worker/data/sampler.h"
#include "worker/tensor/residency/state_table.h"
#include "worker/train/schedule/lr_schedule.h"

#include <stdio.h>
#include <stdlib.h>

struct pen_sampler {
    pen_ctx *ctx;    /* NULL: none */
    int world, rank; /* 0, 0: those of the context now */
    pthread_mutex_t lock;
    sampler own;
    char state[32];        /* name of its position in snapshots; "": not saved */
    sampler_position kept; /* the saved position; under the state table's lock */
};

/* ---- create and destroy ---------------------------------------------------------------------- */
static pen_status check_ranks(const pen_sampler_desc *d, bool has_ctx)
{
    if (d->world < 0 || d->rank < 0 || (d->world > 0 && d->rank >= d->world) ||
        (d->world == 0 && d->rank > 0))
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_sampler_new: invalid rank %d of world %d; use a rank below "
                                 "world, or 0, 0 for those of the context",
                                 d->rank, d->world);
    if (d->world == 0 && !has_ctx)
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_sampler_new: missing world and rank; set them when there is no "
            "context (world 1, rank 0 for one process)");
    return PEN_OK;
}

static pen_status check(const pen_sampler_desc *d, bool has_ctx)
{
    pen_error why;
    if (model_check_reserved(d->reserved, 4, "pen_sampler_desc", &why) != PEN_OK)
        return last_error_set(&why);
    if (d->reserved32 != 0)
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_sampler_desc has garbage in reserved32; initialise it with {0}");
    if (d->n < 1 || d->n > SAMPLER_SAMPLES_MAX)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_sampler_new: invalid n %lld; expected 1 to 2^48 samples",
                                 (long long)d->n);
    if (d->drop_last && d->exact)
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_sampler_new: drop_last and exact contradict each other; choose one");
    return check_ranks(d, has_ctx);
}

/* Only a sampler that follows the members of the job has the same position on all ranks.  A
 * restored snapshot sets the position here, or later in pen_commit(). */
static pen_status keep_position(pen_sampler *s)
{
    pen_error why;
    if (s->ctx == NULL || s->world > 0) return PEN_OK;
    snprintf(s->state, sizeof s->state, "penstock.sampler.%u",
             atomic_fetch_add(&s->ctx->n_samplers, 1));
    s->kept = s->own.at;
    if (state_table_add(&s->ctx->states, s->state, &s->kept, sizeof s->kept, false, &why) == PEN_OK)
        return PEN_OK;
    s->state[0] = '\0';
    return last_error_set(&why);
}

/* The lock is held only for this copy: the thread that steps packs snapshots under it. */
static void copy_position(pen_sampler *s, sampler_position *to, const sampler_position *from)
{
    if (s->state[0] == '\0') return;
    pthread_mutex_lock(&s->ctx->states.lock);
    *to = *from;
    pthread_mutex_unlock(&s->ctx->states.lock);
}

static void enter(pen_sampler *s)
{
    pthread_mutex_lock(&s->lock);
    copy_position(s, &s->own.at, &s->kept); /* a restored snapshot may have written it */
}

static void leave(pen_sampler *s)
{
    copy_position(s, &s->kept, &s->own.at);
    pthread_mutex_unlock(&s->lock);
}

static void free_sampler(pen_sampler *s)
{
    sampler_fini(&s->own);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

pen_status pen_sampler_new(pen_ctx *ctx, const pen_sampler_desc *d, pen_sampler **out)
{
    FP_ENV_OURS();
    pen_status status = ctx != NULL ? context_check(ctx, "pen_sampler_new") : PEN_OK;
    if (status != PEN_OK) return status;
    if (d == NULL || out == NULL)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_sampler_new: d or s is NULL");
    status = check(d, ctx != NULL);
    if (status != PEN_OK) return status;
    pen_sampler *s = calloc(1, sizeof *s);
    if (s == NULL) return last_error_report(PEN_NO_MEMORY, "no memory for a sampler");
    const bool takes_setting = d->seed == 0 && ctx != NULL;
    sampler_init(&s->own, d->n, takes_setting ? ctx->settings.seed : d->seed);
    s->own.shuffles   = d->keep_order == 0;
    s->own.drops_last = d->drop_last != 0;
    s->own.is_exact   = d->exact != 0;
    s->ctx            = ctx;
    s->world          = d->world;
    s->rank           = d->rank;
    pthread_mutex_init(&s->lock, NULL);
    status = keep_position(s);
    if (status == PEN_OK)
        *out = s;
    else
        free_sampler(s);
    return status;
}

void pen_sampler_free(pen_sampler *s)
{
    FP_ENV_OURS();
    if (s == NULL) return;
    if (s->state[0] != '\0') state_table_remove(&s->ctx->states, s->state);
    free_sampler(s);
}

/* ---- taking ---------------------------------------------------------------------------------- */
static pen_status find_place(const pen_sampler *s, int *world, int *rank)
{
    *world = s->world;
    *rank  = s->rank;
    if (s->world > 0) return PEN_OK;
    const pen_status status = context_check(s->ctx, "pen_sampler_next");
    if (status != PEN_OK) return status;
    const pen_group *g = s->ctx->world;
    *world             = pen_size(g);
    *rank              = pen_rank(g);
    if (*rank >= 0) return PEN_OK;
    return last_error_report(PEN_NOT_A_MEMBER,
                             "pen_sampler_next: this worker is no longer a member of the world");
}

pen_status pen_sampler_next(pen_sampler *s, int64_t *index, size_t want, size_t *got)
{
    FP_ENV_OURS();
    pen_error why;
    int world, rank;
    if (s == NULL || got == NULL || (index == NULL && want > 0))
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_sampler_next: s, index or got is NULL");
    pen_status status = find_place(s, &world, &rank);
    if (status != PEN_OK) return status;
    enter(s);
    status = sampler_next(&s->own, world, rank, index, want, got, &why);
    leave(s);
    if (status == PEN_END) *got = 0;
    return status == PEN_OK || status == PEN_END ? status : last_error_set(&why);
}

pen_status pen_sampler_seek(pen_sampler *s, int64_t epoch, int64_t consumed)
{
    FP_ENV_OURS();
    if (s == NULL || epoch < 0 || consumed < 0)
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_sampler_seek: s is NULL, or epoch %lld or consumed %lld is below 0",
            (long long)epoch, (long long)consumed);
    enter(s);
    s->own.at = (sampler_position){.n = s->own.n, .epoch = epoch, .consumed = consumed};
    leave(s);
    return PEN_OK;
}

pen_status pen_sampler_tell(const pen_sampler *s, int64_t *epoch, int64_t *consumed)
{
    FP_ENV_OURS();
    if (s == NULL || epoch == NULL || consumed == NULL)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_sampler_tell: s, epoch or consumed is NULL");
    pen_sampler *own = (pen_sampler *)s; /* its locks are all that changes */
    enter(own);
    *epoch    = own->own.at.epoch;
    *consumed = own->own.at.consumed;
    leave(own);
    return PEN_OK;
}

/* ---- the rate of a schedule ------------------------------------------------------------------ */
pen_status pen_lr(const char *schedule, int64_t applied, double *lr)
{
    FP_ENV_OURS();
    pen_error why;
    lr_schedule parsed;
    if (lr == NULL || applied < 0)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_lr: applied is below 0, or lr is NULL");
    if (lr_schedule_parse(schedule, &parsed, &why) != PEN_OK) return last_error_set(&why);
    *lr = lr_schedule_rate(&parsed, 1, applied);
    return PEN_OK;
}
