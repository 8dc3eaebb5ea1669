/* api_slots.c - pen_slots_get, pen_slots_set: the state of update rules between two steps, in every mode.
 *
 * Without servers each worker has a range of each array (state_ranges.h): a read joins the ranges of all ranks by a
 * bitwise OR with zeros; a set broadcasts rank 0's numbers, and each keeps its range.  With servers each rank that wants
 * numbers asks for them, and position 0 sets them while the others wait.
 */
#include "worker/api/api.h"
#include "worker/api/api_coll.h"

#include "common/base/why.h"
#include "common/system/fp_env.h"
#include "worker/io/thread/io_slots.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/stack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct { /* of one tensor that is no stack */
    pen_tensor *tensor;
    uint32_t array; /* as in proto/rows.h */
    float *data;
} row;

typedef struct {
    pen_ctx *ctx;
    const char *call;
    const pen_opts *o;
    row *row;
    size_t n, capacity;
    float *stage; /* [elements of the largest tensor] */
} job;

/* ---- what is asked for ----------------------------------------------------------------------- */
static pen_status find_array(const job *j, const pen_tensor *t, const char *name, uint32_t *array,
                             pen_error *why)
{
    const optim_ops *rule = j->ctx->model.group[t->desc.group]->ops;
    char known[160]       = "";
    *array                = 0;
    if (strcmp(name, "param") == 0) return PEN_OK;
    for (int i = 0; i < rule->slot_count; i++) {
        *array = 1 + (uint32_t)i;
        if (strcmp(name, rule->slot_names[i]) == 0) return PEN_OK;
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, ", %s", rule->slot_names[i]);
    }
    return why_set(why, PEN_NOT_FOUND,
                   "%s: the rule %s of '%s' has no slot '%.40s'; known: param%s", j->call,
                   rule->name, t->name, name, known);
}

static pen_status add_row(job *j, pen_tensor *t, const char *name, float *data, pen_error *why)
{
    while (t->tied_to != NULL) t = t->tied_to;
    if (!t->trained)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: '%s' is not trained", j->call, t->name);
    if (model_rule_of(&j->ctx->model, t) == STEP_ASYNC)
        return why_set(why, PEN_UNSUPPORTED,
                       "%s: '%s' is updated by each push alone (sync=async or ssp), so its state "
                       "never rests; take a snapshot",
                       j->call, t->name);
    row *r = &j->row[j->n++];
    *r     = (row){.tensor = t, .data = data};
    return find_array(j, t, name, &r->array, why);
}

static pen_status add_slot(job *j, const pen_slot *s, pen_error *why)
{
    stack_part part;
    pen_tensor *t = s->tensor;
    for (size_t i = 0; i < sizeof s->reserved / sizeof *s->reserved; i++)
        if (s->reserved[i] != 0)
            return why_set(why, PEN_INVALID_ARGUMENT, "%s: reserved[] must be zero", j->call);
    if (t == NULL || t->ctx != j->ctx || s->slot == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: a tensor of this context, or slot, is NULL",
                       j->call);
    if (s->data != NULL && !device_is_host(device_of(s->data)))
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: data of '%s' is not in host memory", j->call,
                       t->name);
    pen_status status = stack_slices(&t, PEN_ALL, j->call, &part, why);
    if (status != PEN_OK) return status;
    if (j->n + part.n > j->capacity) {
        row *more = realloc(j->row, 2 * (j->n + part.n) * sizeof *more);
        if (more == NULL) return why_set(why, PEN_NO_MEMORY, "%s: no memory", j->call);
        j->row      = more;
        j->capacity = 2 * (j->n + part.n);
    }
    float *data = s->data;
    for (uint32_t i = 0; i < part.n && status == PEN_OK; i++) {
        status = add_row(j, part.tensor[i], s->slot, data, why);
        if (data != NULL) data += part.tensor[i]->elements;
    }
    return status;
}

static pen_status prepare(job *j, const pen_slot *slots, size_t n)
{
    pen_error why;
    uint64_t most = 1;
    if (slots == NULL && n > 0)
        return last_error_report(PEN_INVALID_ARGUMENT, "%s: slots is NULL", j->call);
    pen_status status = api_check_opts(j->o);
    if (status == PEN_OK) status = api_check_committed(j->ctx, j->call);
    if (status == PEN_OK) status = api_check_stays(j->ctx, j->call);
    if (status == PEN_OK) status = api_wait_for_values(j->ctx, j->call);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < n; i++)
        if (add_slot(j, &slots[i], &why) != PEN_OK) return last_error_set(&why);
    for (size_t i = 0; i < j->n; i++)
        if (j->row[i].tensor->elements > most) most = j->row[i].tensor->elements;
    j->stage = malloc(most * sizeof *j->stage);
    return j->stage != NULL ? PEN_OK : last_error_report(PEN_NO_MEMORY, "%s: no memory", j->call);
}

/* ---- the other ranks ------------------------------------------------------------------------- */
static pen_status together(const job *j, coll_call call)
{
    call.scale = 1;
    call.label = j->call;
    return j->ctx->world->size > 1 ? api_coll_wait(j->ctx->world, &call, NULL) : PEN_OK;
}

static pen_status wait_for_all(const job *j)
{
    return together(j, (coll_call){.kind = COLL_BARRIER, .dtype = PEN_U8});
}

/* All ranks get position 0's bytes. */
static pen_status tell(const job *j, void *bytes, size_t n, pen_dtype type)
{
    return together(
        j, (coll_call){.kind = COLL_BROADCAST, .dtype = type, .n = n, .in = bytes, .out = bytes});
}

/* ---- without servers ------------------------------------------------------------------------- */
static float *array_of(const state_range *span, uint32_t array)
{
    return array == 0 ? span->param : span->slot[array - 1];
}

static pen_status read_ranges(job *j, const state_ranges *h)
{
    const bool is_all_here = h->copies == j->ctx->world->size;
    pen_status status      = PEN_OK;
    for (size_t i = 0; i < j->n && status == PEN_OK; i++) {
        const row *r            = &j->row[i];
        const uint64_t n        = r->tensor->elements;
        const state_range *span = &h->span[r->tensor->index];
        const float *array      = array_of(span, r->array);
        if (!is_all_here) {
            memset(j->stage, 0, n * sizeof(float));
            if (span->count > 0) memcpy(j->stage + span->start, array, span->count * sizeof(float));
            array  = j->stage;
            status = together(j, (coll_call){.kind  = COLL_ALL_REDUCE,
                                             .op    = PEN_BOR,
                                             .dtype = PEN_U32,
                                             .n     = n,
                                             .in    = j->stage,
                                             .out   = j->stage});
        }
        if (r->data != NULL && status == PEN_OK) memcpy(r->data, array, n * sizeof(float));
    }
    return status;
}

static pen_status set_ranges(job *j, state_ranges *h, int64_t applied)
{
    pen_error why;
    pen_ctx *ctx      = j->ctx;
    pen_status status = PEN_OK;
    for (size_t i = 0; i < j->n && status == PEN_OK; i++) {
        const row *r            = &j->row[i];
        const state_range *span = &h->span[r->tensor->index];
        if (ctx->world->rank == 0) memcpy(j->stage, r->data, r->tensor->elements * sizeof(float));
        status = tell(j, j->stage, r->tensor->elements, PEN_F32);
        if (status == PEN_OK && span->count > 0)
            memcpy(array_of(span, r->array), j->stage + span->start, span->count * sizeof(float));
    }
    if (status != PEN_OK) return status;
    for (uint32_t i = 0; i < h->n; i++)
        if (ctx->model.tensor[h->span[i].tensor]->trained) h->span[i].version = (uint64_t)applied;
    return ctx->strategy->ops->restored(ctx->strategy, applied, &why) == PEN_OK
               ? PEN_OK
               : last_error_set(&why);
}

/* ---- with servers ---------------------------------------------------------------------------- */
static pen_status ask(const job *j, io_slots *s)
{
    request *r;
    pen_status status = request_begin(j->ctx, REQUEST_SLOTS, j->o, NULL, &r);
    if (status != PEN_OK) return status;
    s->call.round = (uint64_t)j->ctx->step.next_index;
    r->u.slots    = s;
    status        = api_start(r, NULL, NULL);
    free(s->memory);
    s->memory = NULL;
    return status;
}

static pen_status read_servers(job *j)
{
    pen_status status = wait_for_all(j); /* all have ended their step, so servers have */
    for (size_t i = 0; i < j->n && status == PEN_OK; i++) {
        io_slots s = {.tensor = j->row[i].tensor,
                      .call   = {.what = SLOTS_READ, .array = j->row[i].array},
                      .out    = j->row[i].data};
        if (s.out != NULL) status = ask(j, &s);
    }
    return status;
}

static pen_status set_all(job *j, int64_t applied)
{
    const model *m    = &j->ctx->model;
    pen_status status = PEN_OK;
    for (size_t i = 0; i < j->n && status == PEN_OK; i++) {
        io_slots s = {.tensor = j->row[i].tensor,
                      .call   = {.what = SLOTS_SET, .array = j->row[i].array},
                      .in     = j->row[i].data};
        status     = ask(j, &s);
    }
    for (uint32_t i = 0; i < m->n_tensors && status == PEN_OK; i++) {
        io_slots s = {.tensor = m->tensor[i], .call = {.what = SLOTS_COUNT, .applied = applied}};
        if (m->tensor[i]->trained && model_rule_of(m, m->tensor[i]) != STEP_ASYNC)
            status = ask(j, &s);
    }
    return status;
}

static pen_status set_servers(job *j, int64_t applied)
{
    pen_error why     = {.status = PEN_OK};
    pen_status status = wait_for_all(j);
    if (status != PEN_OK) return status;
    if (j->ctx->world->rank == 0 && set_all(j, applied) != PEN_OK) pen_last_error(&why);
    status                        = tell(j, &why, sizeof why, PEN_U8);
    why.text[sizeof why.text - 1] = '\0';
    if (status == PEN_OK && why.status != PEN_OK) status = last_error_set(&why);
    for (size_t i = 0; i < j->n && status == PEN_OK; i++) { /* values that this worker keeps */
        io_slots s = {.tensor = j->row[i].tensor, .out = j->row[i].tensor->param};
        if (j->row[i].array == 0 && s.tensor->stays) status = ask(j, &s);
    }
    io_slots own = {.call = {.applied = applied}};
    return status == PEN_OK ? ask(j, &own) : status;
}

/* All get position 0's count, or one sentence if it cannot go on: -1 - i says that it has no data of row i. */
static pen_status agree(const job *j, int64_t *applied)
{
    int64_t told = *applied < 0 ? INT64_MIN : *applied;
    for (size_t i = 0; i < j->n && told >= 0; i++)
        if (j->row[i].data == NULL) told = -1 - (int64_t)i;
    const pen_status status = tell(j, &told, 1, PEN_I64);
    if (status != PEN_OK) return status;
    *applied = told;
    if (told >= 0) return PEN_OK;
    const uint64_t i = (uint64_t)(-1 - told);
    return i < j->n ? last_error_report(PEN_INVALID_ARGUMENT, "%s: data of '%s' is NULL on rank 0",
                                        j->call, j->row[i].tensor->name)
                    : last_error_report(PEN_INVALID_ARGUMENT, "%s: applied is below 0 on rank 0",
                                        j->call);
}

/* ---- the calls ------------------------------------------------------------------------------- */
static pen_status run_slots(job *j, bool sets, int64_t *applied)
{
    pen_error why;
    state_ranges h          = {.copies = 1};
    pen_ctx *ctx            = j->ctx;
    const strategy_ops *ops = ctx->strategy->ops;
    const bool is_without   = ops->state_ranges != NULL;
    if (ctx->step.is_begun)
        return last_error_report(PEN_WRONG_STATE,
                                 "%s: step %" PRId64 " is in progress; call it between "
                                 "pen_step_end() and pen_step_begin()",
                                 j->call, ctx->step.next_index);
    if (!io_has_begun(ctx) && sets) return PEN_OK;
    if (!io_has_begun(ctx))
        return last_error_report(PEN_WRONG_STATE,
                                 "%s: this worker joined a running job, whose others train; make a "
                                 "step first, and call it on all",
                                 j->call);
    if (is_without && ops->state_ranges(ctx->strategy, &h, &why) != PEN_OK)
        return last_error_set(&why);
    if (!sets) {
        *applied = ctx->step.applied;
        return is_without ? read_ranges(j, &h) : read_servers(j);
    }
    pen_status status = agree(j, applied);
    if (status == PEN_OK)
        status = is_without ? set_ranges(j, &h, *applied) : set_servers(j, *applied);
    if (status != PEN_OK) return status;
    ctx->step.applied = *applied;
    return device_copies_changed(ctx, &why) == PEN_OK ? PEN_OK : last_error_set(&why);
}

static pen_status begin(pen_ctx *ctx, const char *call, bool sets, const pen_slot *slots, size_t n,
                        int64_t *applied, const pen_opts *o)
{
    job j             = {.ctx = ctx, .call = call, .o = o};
    pen_status status = context_enter(ctx, call, true);
    if (status != PEN_OK) return status;
    status = prepare(&j, slots, n);
    if (status == PEN_OK) status = api_lock_step(ctx, call);
    if (status == PEN_OK) {
        status = run_slots(&j, sets, applied);
        pthread_mutex_unlock(&ctx->step.lock);
    }
    free(j.row);
    free(j.stage);
    return context_leave(ctx, status);
}

pen_status pen_slots_get(pen_ctx *ctx, const pen_slot *slots, size_t n, int64_t *applied,
                         const pen_opts *o)
{
    FP_ENV_OURS();
    int64_t unwanted;
    return begin(ctx, "pen_slots_get", false, slots, n, applied != NULL ? applied : &unwanted, o);
}

pen_status pen_slots_set(pen_ctx *ctx, const pen_slot *slots, size_t n, int64_t applied,
                         const pen_opts *o)
{
    FP_ENV_OURS();
    return begin(ctx, "pen_slots_set", true, slots, n, &applied, o);
}
