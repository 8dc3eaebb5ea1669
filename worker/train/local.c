/* local.c - training alone: no thread, no socket, and the same bits as with servers.
 *
 * DESIGN.  A step does what one shard would do for one rank (replica.h).  All of it happens in the
 * call that ends the step, or in an explicit push.
 */
#include "worker/train/local.h"

#include "common/log.h"
#include "common/why.h"
#include "worker/commands.h"
#include "worker/context.h"
#include "worker/train/keeper.h"
#include "worker/train/replica.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    pthread_mutex_t lock;
    replica *replica;
    float **sum; /* [n_tensors] weighted gradients; NULL: the gradient is used where it is */
    const wire_inputs *inputs;
} local;

/* ---- memory ---------------------------------------------------------------------------------- */
static void free_local(local *l, const model *m)
{
    for (uint32_t i = 0; l->sum != NULL && i < m->n_tensors; i++) {
        const pen_tensor *t = m->tensor[i];
        if (l->sum[i] != NULL)
            stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, -(int64_t)(t->elements * sizeof(float)));
        free(l->sum[i]);
    }
    free(l->sum);
    replica_destroy(l->replica);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static pen_status commit(pen_ctx *ctx, pen_error *why)
{
    local *l       = ctx->state;
    const model *m = &ctx->model;
    l->sum         = calloc(m->n_tensors + 1, sizeof *l->sum);
    if (l->sum == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the gradients of %u tensors",
                       m->n_tensors);
    if (replica_create(m, &l->replica, why) != PEN_OK) return why->status;
    return keeper_commit(ctx, why);
}

static pen_status local_holding(pen_ctx *ctx, holding *h, pen_error *why)
{
    local *l  = ctx->state;
    h->copies = 1;
    return replica_holding(l->replica, h, why);
}

static pen_status local_restored(pen_ctx *ctx, int64_t applied, pen_error *why)
{
    local *l = ctx->state;
    (void)why;
    replica_restored(l->replica, applied);
    return PEN_OK;
}

/* ---- one tensor ------------------------------------------------------------------------------ */
/* A gradient of weight 1 in float32 is read where it is: 1 x g has the same bits. */
static pen_status fold(local *l, const model *m, const pen_tensor *t, const void *grad,
                       double weight, pen_error *why)
{
    const pen_dtype as = model_push_dtype(m, t);
    if (grad != NULL && as == PEN_F32 && weight == 1) {
        replica_give(l->replica, t, grad);
        return PEN_OK;
    }
    float **sum = &l->sum[t->index];
    if (*sum == NULL) {
        *sum = malloc(t->elements * sizeof(float));
        if (*sum == NULL)
            return why_set(why, PEN_NO_MEMORY, "no memory for the gradient of '%s'", t->name);
        stat_hold(&t->ctx->stats, STAT_GRAD_BYTES, (int64_t)(t->elements * sizeof(float)));
    }
    replica_weigh(*sum, grad, t->desc.grad_dtype, as, weight, t->elements);
    replica_give(l->replica, t, *sum);
    return PEN_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */
/* Sums are of weighted gradients; a push that is applied on its own is scaled then. */
static double weight_of(exchange_rule rule, const wire_inputs *in)
{
    return rule == EXCHANGE_FREE ? 1 : in->weight;
}

static void decide(local *l, wire_decision *decision, exchange_outcome *outcome)
{
    uint32_t bad_chunk;
    const bool is_bad =
        replica_decide(l->replica, l->inputs, l->inputs->weight, decision, &bad_chunk);
    *outcome = (exchange_outcome){.outcome  = decision->outcome,
                                  .norm     = decision->norm,
                                  .clip     = decision->clip,
                                  .has_bad  = is_bad,
                                  .bad_rank = is_bad ? 0 : -1};
    if (is_bad) outcome->bad_tensor = replica_plan(l->replica)->chunk[bad_chunk].tensor;
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
        if (fold(l, m, t, t->pushed, weight_of(model_rule_of(m, t), l->inputs), why) != PEN_OK)
            return why->status;
    }

    if (model_is_decided(m)) {
        decide(l, &decision, outcome);
    } else {
        *outcome = (exchange_outcome){.outcome = PEN_APPLIED, .clip = 1, .bad_rank = -1};
        replica_count_step(l->replica);
    }
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained)
            replica_carry_out(l->replica, m->tensor[i], l->inputs, l->inputs->weight, &decision);
    outcome->applied = replica_applied(l->replica);
    outcome->scalars = l->inputs->scalars;
    return keeper_step(ctx, ctx->step.next_index + 1, l->inputs->snapshot, why);
}

static void end_step(pen_ctx *ctx, request *r)
{
    pen_error why;
    local *l          = ctx->state;
    pen_status status = finish_step(ctx, &why);
    r->result.version = l->replica != NULL ? (uint64_t)replica_applied(l->replica) : 0;
    if (r->u.step.decided != NULL)
        request_end(r->u.step.decided, status, status != PEN_OK ? &why : NULL);
    request_end(r, status, status != PEN_OK ? &why : NULL);
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
static pen_status do_verb(pen_ctx *ctx, request *r, pen_error *why)
{
    local *l            = ctx->state;
    const pen_tensor *t = r->u.verb.tensor;
    if (r->u.verb.verb != EXCHANGE_PULL) {
        const pen_params *p = ctx->model.group[t->desc.group];
        if (fold(l, &ctx->model, t, r->u.verb.from, 1, why) != PEN_OK) return why->status;
        replica_update(l->replica, t, p->hyper.lr, 1);
    }
    if (r->u.verb.verb != EXCHANGE_PUSH) {
        replica_values(l->replica, t, r->u.verb.to);
        r->result.count = t->bytes;
    }
    r->result.version = replica_version(l->replica, t);
    return PEN_OK;
}

/* ---- the engine ------------------------------------------------------------------------------ */
static pen_status local_open(pen_ctx *ctx, pen_error *why)
{
    local *l = calloc(1, sizeof *l);
    if (l == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training alone");
    pthread_mutex_init(&l->lock, NULL);
    ctx->state = l;
    if (keeper_create(ctx, NULL, why) != PEN_OK) return why->status;
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
    case REQUEST_FETCH: /* everything is always here */
    case REQUEST_PULL_FREE: return PEN_OK;
    case REQUEST_COMMIT: return commit(ctx, why);
    case REQUEST_VERB: return do_verb(ctx, r, why);
    case REQUEST_SNAPSHOT:
    case REQUEST_COMMAND:
    case REQUEST_STORE:
    case REQUEST_COLL:
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

/* Nobody else has to be in the same step, so it is taken at once. */
static void take_snapshot(pen_ctx *ctx, request *r)
{
    pen_error why;
    if (ctx->phase != CONTEXT_COMMITTED) {
        why_set(&why, PEN_WRONG_STATE,
                "pen_snapshot: pen_commit has not been called; register, then commit, then step");
        request_end(r, why.status, &why);
        return;
    }
    if (keeper_ask(ctx, r)) (void)keeper_step(ctx, ctx->step.next_index, true, &why);
    atomic_store(&ctx->snapshot_wanted, false);
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
    } else if (r->kind == REQUEST_SNAPSHOT) {
        take_snapshot(ctx, r);
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

static void local_ready(pen_ctx *ctx, pen_tensor *t, const void *grad)
{
    (void)ctx;
    t->pushed = grad;
}

static void local_abort(pen_ctx *ctx)
{
    (void)ctx; /* the next call sees ctx->is_aborting */
}

static void local_close(pen_ctx *ctx)
{
    if (ctx->state != NULL) free_local(ctx->state, &ctx->model);
    ctx->state = NULL;
    keeper_destroy(ctx);
}

const engine_ops engine_local = {.name      = "local",
                                 .open      = local_open,
                                 .holding   = local_holding,
                                 .restored  = local_restored,
                                 .start     = local_start,
                                 .step_open = local_step_open,
                                 .ready     = local_ready,
                                 .answer    = local_answer,
                                 .abort     = local_abort,
                                 .close     = local_close};
