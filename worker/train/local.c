/* local.c - training alone: no thread, no socket, and the same bits as with servers.
 *
 * DESIGN.  A step does what one shard would do for one rank: the same cuts (plan.h), the same fold
 * by weight, the same sums of squares, the same decision, the same update rules on the same spans.
 * All of it happens in the call that ends the step, or in an explicit push.  Parameters of 16 bits
 * keep a float32 master, as servers do.
 */
#include "worker/train/local.h"

#include "common/log.h"
#include "common/simd/simd.h"
#include "common/why.h"
#include "proto/decision.h"
#include "proto/plan.h"
#include "worker/calls.h"
#include "worker/context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float *master;                /* [elements]; NULL: the program's own memory, it is float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [elements] each */
    float *sum;                   /* [elements]; NULL: the gradient is used where it is */
    const float *grad;            /* of this step: weighted, float32 */
    uint64_t version;             /* updates applied */
} local_tensor;

typedef struct {
    pthread_mutex_t lock;
    plan *plan;
    local_tensor *tensor;
    wire_record *record;
    double **sums;    /* [n_partitions][blocks] */
    double *scratch;  /* two per block of the largest tensor */
    optim_span *span; /* chunks of the largest tensor */
    float *zeros;     /* of the largest tensor; made when first needed */
    uint16_t *wire;   /* a gradient of 16 bits, as one would travel; likewise */
    const wire_inputs *inputs;
    int64_t applied;
} local;

/* ---- memory ---------------------------------------------------------------------------------- */
static void free_local(local *l, const model *m)
{
    for (uint32_t i = 0; l->tensor != NULL && i < m->n_tensors; i++) {
        free(l->tensor[i].master);
        free(l->tensor[i].sum);
        for (int s = 0; s < OPTIM_SLOTS_MAX; s++) free(l->tensor[i].slot[s]);
    }
    for (uint32_t i = 0; l->sums != NULL && i < l->plan->n_partitions; i++) free(l->sums[i]);
    free(l->tensor);
    free(l->record);
    free(l->sums);
    free(l->scratch);
    free(l->span);
    free(l->zeros);
    free(l->wire);
    plan_destroy(l->plan);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static float *param_of(const local *l, const pen_tensor *t)
{
    float *master = l->tensor[t->index].master;
    return master != NULL ? master : t->param;
}

static bool make_tensor(local *l, const model *m, const pen_tensor *t)
{
    local_tensor *own   = &l->tensor[t->index];
    const pen_params *p = m->group[t->desc.group];
    optim_span whole    = {.n = t->elements};
    if (t->desc.dtype != PEN_F32) {
        own->master = malloc(t->elements * sizeof(float));
        if (own->master == NULL) return false;
        simd()->decode(own->master, t->param, t->desc.dtype, t->elements);
    }
    if (!t->trained) return true;
    for (int s = 0; s < p->ops->slot_count; s++) {
        own->slot[s] = whole.slot[s] = calloc(t->elements, sizeof(float));
        if (own->slot[s] == NULL) return false;
    }
    whole.param = param_of(l, t);
    if (p->ops->slot_init != NULL) p->ops->slot_init(&p->hyper, &whole);
    return true;
}

static bool make_sums(local *l)
{
    const plan *p = l->plan;
    l->record     = calloc(p->n_partitions, sizeof *l->record);
    l->sums       = calloc(p->n_partitions, sizeof *l->sums);
    if (l->record == NULL || l->sums == NULL) return false;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        l->sums[i] = calloc(p->partition[i].blocks + 1, sizeof(double));
        if (l->sums[i] == NULL) return false;
    }
    return true;
}

static bool make_scratch(local *l, const model *m)
{
    uint64_t blocks = 1, chunks = 1;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        uint64_t b = (m->tensor[i]->elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
        uint64_t c = l->plan->first_chunk[i + 1] - l->plan->first_chunk[i];
        if (b > blocks) blocks = b;
        if (c > chunks) chunks = c;
    }
    l->scratch = calloc(2 * blocks, sizeof *l->scratch);
    l->span    = calloc(chunks, sizeof *l->span);
    return l->scratch != NULL && l->span != NULL;
}

static pen_status commit(pen_ctx *ctx, pen_error *why)
{
    local *l       = ctx->state;
    const model *m = &ctx->model;
    if (plan_create(&m->wire, &l->plan, why) != PEN_OK) return why->status;
    l->tensor = calloc(m->n_tensors, sizeof *l->tensor);
    bool ok   = l->tensor != NULL && make_sums(l) && make_scratch(l, m);
    for (uint32_t i = 0; ok && i < m->n_tensors; i++) ok = make_tensor(l, m, m->tensor[i]);
    return ok ? PEN_OK
              : why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state of %u tensors",
                        m->n_tensors);
}

/* ---- one tensor ------------------------------------------------------------------------------ */
static uint64_t largest_of(const model *m)
{
    uint64_t largest = 1;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->elements > largest) largest = m->tensor[i]->elements;
    return largest;
}

/* Rounded as it would be on its way to a server. */
static const void *as_it_travels(local *l, const model *m, const pen_tensor *t, const void *grad)
{
    const pen_dtype as = model_push_dtype(m, t);
    if (as == t->desc.grad_dtype) return grad;
    if (l->wire == NULL) l->wire = calloc(largest_of(m), sizeof *l->wire);
    if (l->wire != NULL) simd()->encode(l->wire, grad, as, t->elements);
    return l->wire;
}

/* A gradient of weight 1 in float32 is read where it is: 1 x g has the same bits. */
static pen_status fold(local *l, const model *m, const pen_tensor *t, const void *grad,
                       double weight)
{
    local_tensor *own  = &l->tensor[t->index];
    const pen_dtype as = model_push_dtype(m, t);
    if (grad == NULL) return PEN_NO_MEMORY; /* there was none for zeros */
    if (as == PEN_F32 && weight == 1) {
        own->grad = grad;
        return PEN_OK;
    }
    const void *pushed = as_it_travels(l, m, t, grad);
    if (own->sum == NULL) own->sum = malloc(t->elements * sizeof(float));
    if (own->sum == NULL || pushed == NULL) return PEN_NO_MEMORY;
    simd()->fold_set(own->sum, pushed, as, (float)weight, t->elements);
    own->grad = own->sum;
    return PEN_OK;
}

static void update(local *l, const model *m, const pen_tensor *t, uint64_t step, double lr,
                   double gscale)
{
    local_tensor *own   = &l->tensor[t->index];
    const pen_params *p = m->group[t->desc.group];
    uint32_t first = l->plan->first_chunk[t->index], n = l->plan->first_chunk[t->index + 1] - first;
    for (uint32_t i = 0; i < n; i++) {
        const plan_chunk *c = &l->plan->chunk[first + i];
        l->span[i]          = (optim_span){.param    = param_of(l, t) + c->start,
                                           .grad     = own->grad + c->start,
                                           .n        = c->count,
                                           .step     = step,
                                           .lr       = lr,
                                           .gscale   = gscale,
                                           .no_decay = (t->desc.flags & PEN_NO_DECAY) != 0};
        for (int s = 0; s < p->ops->slot_count; s++) l->span[i].slot[s] = own->slot[s] + c->start;
    }
    optim_apply(p->ops, &p->hyper, l->span, n, l->scratch);
    own->version++;
}

static void give_values(const local *l, const pen_tensor *t, void *to)
{
    const float *values = param_of(l, t);
    if (to == values) return;
    simd()->encode(to, values, t->desc.dtype, t->elements);
}

/* ---- the step -------------------------------------------------------------------------------- */
static void measure(local *l, uint32_t chunk)
{
    const plan_chunk *c = &l->plan->chunk[chunk];
    wire_record *record = &l->record[c->partition];
    const float *grad   = l->tensor[c->tensor].grad + c->start;
    if (simd()->norm(grad, c->count, l->sums[c->partition] + c->first_block)) return;
    if (record->finite) record->bad_chunk = chunk;
    record->finite   = false;
    record->bad_rank = 0;
}

static void decide(local *l, wire_decision *decision, exchange_outcome *outcome)
{
    uint32_t bad_chunk = 0;
    int32_t bad_rank   = -1;
    for (uint32_t i = 0; i < l->plan->n_partitions; i++)
        l->record[i] = (wire_record){
            .partition = i, .weight_sum = l->inputs->weight, .finite = true, .bad_rank = -1};
    for (uint32_t c = 0; c < l->plan->n_chunks; c++)
        if (l->plan->chunk[c].blocks > 0) measure(l, c);
    decision_make(l->plan, l->record, (const double *const *)l->sums, l->inputs, l->applied,
                  decision, &bad_chunk, &bad_rank);
    *outcome = (exchange_outcome){.outcome  = decision->outcome,
                                  .norm     = decision->norm,
                                  .clip     = decision->clip,
                                  .has_bad  = bad_rank >= 0,
                                  .bad_rank = bad_rank};
    if (outcome->has_bad) outcome->bad_tensor = l->plan->chunk[bad_chunk].tensor;
}

/* Sums are of weighted gradients; a push that is applied on its own is scaled then. */
static double weight_of(exchange_rule rule, const wire_inputs *in)
{
    return rule == EXCHANGE_FREE ? 1 : in->weight;
}

/* Without a decision each tensor counts at once.  0: there is nothing to count. */
static double gscale_alone(exchange_rule rule, const wire_inputs *in)
{
    if (in->weight == 0) return 0;
    return rule == EXCHANGE_FREE ? in->weight / in->loss_scale : 1 / (in->weight * in->loss_scale);
}

/* What the step means for one tensor: groups that no decision closes do not wait for it. */
static void carry_out(local *l, const model *m, const pen_tensor *t, const wire_decision *decision)
{
    const exchange_rule rule = model_rule_of(m, t);
    const bool is_decided    = rule == EXCHANGE_DECIDE;
    const double gscale      = is_decided ? decision->gscale : gscale_alone(rule, l->inputs);
    if (is_decided ? decision->outcome != PEN_APPLIED : gscale == 0) return;
    update(l, m, t, l->tensor[t->index].version + 1, l->inputs->rate[t->desc.group], gscale);
    give_values(l, t, t->param);
}

static pen_status finish_step(pen_ctx *ctx, pen_error *why)
{
    local *l                  = ctx->state;
    const model *m            = &ctx->model;
    exchange_outcome *outcome = &ctx->step.outcome;
    wire_decision decision    = {.outcome = PEN_APPLIED, .clip = 1};
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        if (!t->trained) continue;
        if (fold(l, m, t, t->pushed, weight_of(model_rule_of(m, t), l->inputs)) != PEN_OK)
            return why_set(why, PEN_NO_MEMORY, "no memory for the gradient of '%s'", t->name);
    }

    if (model_is_decided(m))
        decide(l, &decision, outcome);
    else
        *outcome = (exchange_outcome){.outcome = PEN_APPLIED, .clip = 1, .bad_rank = -1};
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained) carry_out(l, m, m->tensor[i], &decision);
    if (decision.outcome == PEN_APPLIED) l->applied++;
    outcome->applied = l->applied;
    return PEN_OK;
}

static void end_step(pen_ctx *ctx, request *r)
{
    pen_error why;
    local *l          = ctx->state;
    pen_status status = finish_step(ctx, &why);
    r->result.version = (uint64_t)l->applied;
    if (r->u.step.decided != NULL)
        request_end(r->u.step.decided, status, status != PEN_OK ? &why : NULL);
    request_end(r, status, status != PEN_OK ? &why : NULL);
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
static pen_status do_verb(pen_ctx *ctx, request *r)
{
    local *l              = ctx->state;
    const pen_tensor *t   = r->u.verb.tensor;
    const wire_inputs one = {.loss_scale = 1, .weight = 1};
    if (r->u.verb.verb != EXCHANGE_PULL) {
        const pen_params *p = ctx->model.group[t->desc.group];
        if (fold(l, &ctx->model, t, r->u.verb.from, 1) != PEN_OK) return PEN_NO_MEMORY;
        update(l, &ctx->model, t, l->tensor[t->index].version + 1, p->hyper.lr,
               gscale_alone(p->rule, &one));
    }
    if (r->u.verb.verb != EXCHANGE_PUSH) {
        give_values(l, t, r->u.verb.to);
        r->result.count = t->bytes;
    }
    r->result.version = l->tensor[t->index].version;
    return PEN_OK;
}

static void do_meet(request *r)
{
    if (r->u.meet.size > 0) memcpy(r->u.meet.out, r->u.meet.in, r->u.meet.size);
    r->result.count = r->u.meet.count;
    free(r->u.meet.in);
    free(r->u.meet.label);
}

/* ---- the engine ------------------------------------------------------------------------------ */
static pen_status local_open(pen_ctx *ctx, pen_error *why)
{
    local *l = calloc(1, sizeof *l);
    if (l == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training alone");
    pthread_mutex_init(&l->lock, NULL);
    ctx->state = l;
    if (ctx->env.source[0] == '\0' || strcmp(ctx->env.source, "nothing") == 0)
        log_notice(
            "alone (no RANK in the environment; `penstock run --nproc-per-node 2 ./%s` starts two)",
            program_invocation_short_name);
    else
        log_notice("alone (a world of one worker and no servers, from %s)", ctx->env.source);
    return PEN_OK;
}

static pen_status run(pen_ctx *ctx, request *r, pen_error *why)
{
    switch (r->kind) {
    case REQUEST_JOIN:
    case REQUEST_LEAVE:
    case REQUEST_PULL_FREE: return PEN_OK;
    case REQUEST_COMMIT: return commit(ctx, why);
    case REQUEST_MEET: do_meet(r); return PEN_OK;
    case REQUEST_VERB:
        if (do_verb(ctx, r) == PEN_OK) return PEN_OK;
        return why_set(why, PEN_NO_MEMORY, "no memory for the gradient of '%s'",
                       r->u.verb.tensor->name);
    case REQUEST_SNAPSHOT:
        return why_set(why, PEN_UNSUPPORTED,
                       "a program that is alone has no servers to keep a snapshot; save the "
                       "parameters yourself");
    case REQUEST_COMMAND:
    case REQUEST_STEP: break;
    }
    return PEN_OK;
}

/* ---- commands to itself ---------------------------------------------------------------------- */
static void local_answer(pen_ctx *ctx, pen_call *call)
{
    pthread_mutex_lock(&ctx->requests.lock);
    call->is_ready = true;
    pthread_cond_broadcast(&ctx->requests.ended);
    pthread_mutex_unlock(&ctx->requests.lock);
}

/* False: the deadline passed first. */
static bool await_answer(pen_ctx *ctx, const request *r, const pen_call *call)
{
    const struct timespec until = {.tv_sec  = (time_t)(r->deadline_ms / 1000),
                                   .tv_nsec = (long)(r->deadline_ms % 1000 * 1000000)};
    int error                   = 0;
    pthread_mutex_lock(&ctx->requests.lock);
    while (!call->is_ready && error == 0)
        error = r->deadline_ms == 0
                    ? pthread_cond_wait(&ctx->requests.ended, &ctx->requests.lock)
                    : pthread_cond_timedwait(&ctx->requests.ended, &ctx->requests.lock, &until);
    const bool is_ready = call->is_ready;
    pthread_mutex_unlock(&ctx->requests.lock);
    return is_ready;
}

static pen_status take_answer(const request *r, pen_call *call, pen_error *why)
{
    if (call->status != PEN_OK)
        return why_set(why, call->status, "worker 0 refused command %d: %s", r->u.command.head,
                       pen_status_info(call->status)->text);
    if (r->u.command.replies == NULL) return PEN_OK;
    r->u.command.replies[0] = (pen_bytes){call->data, call->size};
    call->data              = NULL;
    return PEN_OK;
}

static pen_status do_command(pen_ctx *ctx, request *r, pen_error *why)
{
    void *user;
    pen_command_fn fn = context_command(ctx, &user);
    const int head    = r->u.command.head;
    if (fn == NULL)
        return why_set(why, PEN_NOT_FOUND, "worker 0 has no handler for command %d", head);
    pen_call *call = calloc(1, sizeof *call);
    if (call == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another command");
    call->ctx  = ctx;
    call->head = head;
    request_callback(true);
    fn(ctx, call, head, r->u.command.body, r->u.command.size, user);
    request_callback(false);
    if (!await_answer(ctx, r, call)) { /* the program has a pointer to it, and may yet use it */
        pthread_mutex_lock(&ctx->requests.lock);
        call->next      = ctx->unanswered;
        ctx->unanswered = call;
        pthread_mutex_unlock(&ctx->requests.lock);
        return why_set(why, PEN_TIMED_OUT, "worker 0 has not answered command %d", head);
    }
    r->result.count   = 1;
    pen_status status = take_answer(r, call, why);
    free(call->data);
    free(call);
    return status;
}

static void start_command(pen_ctx *ctx, request *r)
{
    pen_error why;
    pen_status status = do_command(ctx, r, &why);
    free(r->u.command.body);
    request_end(r, status, status != PEN_OK ? &why : NULL);
    request_tell(&ctx->requests);
}

static void local_start(pen_ctx *ctx, request *r)
{
    local *l = ctx->state;
    pen_error why;
    if (r->kind == REQUEST_COMMAND) { /* without the lock: it runs a function of the program */
        start_command(ctx, r);
        return;
    }
    pthread_mutex_lock(&l->lock);
    if (r->kind == REQUEST_STEP) {
        end_step(ctx, r);
    } else {
        pen_status status = run(ctx, r, &why);
        request_end(r, status, status != PEN_OK ? &why : NULL);
    }
    pthread_mutex_unlock(&l->lock);
    request_tell(&ctx->requests); /* callbacks may begin further requests */
}

static void local_step_open(pen_ctx *ctx, uint64_t index, const wire_inputs *inputs)
{
    (void)index;
    local *l  = ctx->state;
    l->inputs = inputs;
}

static const void *zeros(local *l, const model *m)
{
    if (l->zeros == NULL) l->zeros = calloc(largest_of(m), sizeof(float));
    return l->zeros;
}

static void local_ready(pen_ctx *ctx, pen_tensor *t, const void *grad)
{
    t->pushed = grad != NULL ? grad : zeros(ctx->state, &ctx->model);
}

static void local_abort(pen_ctx *ctx)
{
    (void)ctx; /* the next call sees ctx->is_aborting */
}

static void local_close(pen_ctx *ctx)
{
    if (ctx->state != NULL) free_local(ctx->state, &ctx->model);
    ctx->state = NULL;
}

const engine_ops engine_local = {.name      = "local",
                                 .open      = local_open,
                                 .start     = local_start,
                                 .step_open = local_step_open,
                                 .ready     = local_ready,
                                 .answer    = local_answer,
                                 .abort     = local_abort,
                                 .close     = local_close};
