/* alone.c - the link of a worker that runs alone: no thread, no socket.
 *
 * DESIGN.  A request ends in the thread that begins it.  Values of the key-value store are in a
 * table of the link.  A command runs the program's function at once.  Another thread of the program
 * may set the value, or answer the command, that this thread waits for.
 */
#include "worker/io/job_link.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/value_table.h"
#include "worker/collective/engine/engine.h"
#include "worker/context.h"
#include "membership/commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    job_link link;
    pen_ctx *ctx;
    pthread_mutex_t lock; /* of all below, and of command.is_answered and its answer */
    pthread_cond_t changed;
    value_table *values;
    command_call *unanswered; /* calls that the program still points to */
} alone;

/* Call with the lock.  False: the deadline has passed. */
static bool wait_for_change(alone *a, const request *r)
{
    const struct timespec until = {.tv_sec  = (time_t)(r->deadline_ms / 1000),
                                   .tv_nsec = (long)(r->deadline_ms % 1000 * 1000000)};
    return r->deadline_ms == 0 ? pthread_cond_wait(&a->changed, &a->lock) == 0
                               : pthread_cond_timedwait(&a->changed, &a->lock, &until) == 0;
}

/* ---- the key-value store --------------------------------------------------------------------- */
static pen_status change_value(alone *a, const request *r, pen_error *why)
{
    const unanswered_change *c = &r->u.store.change;
    pthread_mutex_lock(&a->lock);
    const pen_status status =
        c->op == WIRE_STORE_SET
            ? value_table_set(a->values, c->key, c->data, c->size, why)
            : value_table_add(a->values, c->key, c->delta, r->u.store.value, why);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return status;
}

static pen_status get_value(alone *a, const request *r, pen_error *why)
{
    size_t size = 0;
    const void *data;
    bool is_late = false;
    pthread_mutex_lock(&a->lock);
    while ((data = value_table_get(a->values, r->u.store.change.key, &size)) == NULL && !is_late)
        is_late = !wait_for_change(a, r);
    void *copy = data != NULL ? malloc(size + 1) : NULL;
    if (copy != NULL) memcpy(copy, data, size);
    pthread_mutex_unlock(&a->lock);
    if (data == NULL)
        return why_set(why, PEN_TIMED_OUT, "pen_store_get: no value for '%.200s' within %.3g s",
                       r->u.store.change.key, (double)(r->deadline_ms - r->begun_ms) / 1000);
    if (copy == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", size);
    *r->u.store.out = (pen_bytes){copy, size};
    return PEN_OK;
}

/* ---- commands to itself ---------------------------------------------------------------------- */
static void alone_answer(job_link *l, command_call *call)
{
    alone *a = (alone *)l;
    pthread_mutex_lock(&a->lock);
    call->is_ready = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* False: the deadline passed first. The call is kept then, because the program still points to it. */
static bool await_answer(alone *a, const request *r, command_call *call)
{
    bool is_late = false;
    pthread_mutex_lock(&a->lock);
    while (!call->is_ready && !is_late) is_late = !wait_for_change(a, r);
    const bool is_ready = call->is_ready;
    if (!is_ready) {
        call->next    = a->unanswered;
        a->unanswered = call;
    }
    pthread_mutex_unlock(&a->lock);
    return is_ready;
}

static pen_status on_answer(const request *r, command_call *call, pen_error *why)
{
    if (call->status != PEN_OK)
        return why_set(why, call->status, "worker 0 refused command %d: %s", r->u.command.head,
                       pen_status_info(call->status)->text);
    if (r->u.command.replies == NULL) return PEN_OK;
    r->u.command.replies[0] = (pen_bytes){call->data, call->size};
    call->data              = NULL;
    return PEN_OK;
}

static pen_status do_command(alone *a, request *r, pen_error *why)
{
    void *user;
    pen_ctx *ctx      = a->ctx;
    pen_command_fn fn = context_command(ctx, &user);
    const int head    = r->u.command.head;
    if (fn == NULL)
        return why_set(why, PEN_NOT_FOUND, "worker 0 has no handler for command %d", head);
    command_call *call = calloc(1, sizeof *call);
    if (call == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another command");
    call->owner      = ctx;
    call->call.reply = command_reply;
    call->head       = head;
    request_callback(true);
    fn(ctx, &call->call, head, r->u.command.body, r->u.command.size, user);
    request_callback(false);
    if (!await_answer(a, r, call))
        return why_set(why, PEN_TIMED_OUT, "worker 0 has not answered command %d", head);
    r->result.count   = 1;
    pen_status status = on_answer(r, call, why);
    free(call->data);
    free(call);
    return status;
}

/* ---- the link -------------------------------------------------------------------------------- */
static pen_status run_alone(alone *a, request *r, pen_error *why)
{
    if (r->kind == REQUEST_STORE && r->u.store.change.op == WIRE_STORE_GET)
        return get_value(a, r, why);
    if (r->kind == REQUEST_STORE) return change_value(a, r, why);
    if (r->kind != REQUEST_COMMAND) return PEN_OK; /* no other process takes part */
    const pen_status status = do_command(a, r, why);
    free(r->u.command.body);
    return status;
}

static void alone_start(job_link *l, request *r)
{
    pen_error why;
    alone *a                = (alone *)l;
    const pen_status status = run_alone(a, r, &why);
    request_end(r, status, status != PEN_OK ? &why : NULL);
    request_notify(&a->ctx->requests); /* callbacks may begin more requests */
}

static void alone_abort(job_link *l)
{
    (void)l; /* the next call sees ctx->is_aborting */
}

static void alone_close(job_link *l)
{
    alone *a     = (alone *)l;
    pen_ctx *ctx = a->ctx;
    coll_engine_destroy(ctx->coll);
    ctx->coll = NULL;
    while (a->unanswered != NULL) {
        command_call *call = a->unanswered;
        a->unanswered      = call->next;
        free(call->data);
        free(call);
    }
    value_table_destroy(a->values);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static void say_why(const pen_ctx *ctx)
{
    const char *name = program_invocation_short_name;
    if (strncmp(name, "python", 6) == 0)
        name = ctx->job; /* the interpreter: the script is the job */
    if (ctx->env.source[0] == '\0' || strcmp(ctx->env.source, "nothing") == 0)
        log_notice(
            "alone (no RANK in the environment; `penstock run --nproc-per-node 2 ./%s` starts two)",
            name);
    else
        log_notice("alone (a world of one worker and no servers, from %s)", ctx->env.source);
}

pen_status alone_open(pen_ctx *ctx, pen_error *why)
{
    static const job_link_ops ops = {alone_start, alone_answer, alone_abort, alone_close};
    pthread_condattr_t clock;
    alone *a = calloc(1, sizeof *a);
    if (a == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training alone");
    a->link   = (job_link){&ops};
    a->ctx    = ctx;
    ctx->link = &a->link;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&a->changed, &clock);
    pthread_condattr_destroy(&clock);
    a->values = value_table_create(VALUE_TABLE_BYTES_MAX);
    if (a->values == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a key-value store");
    const pen_status status = context_make_coll(ctx, NULL, NULL, why);
    if (status == PEN_OK) say_why(ctx);
    return status;
}
