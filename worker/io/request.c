/* request.c - the table behind pen_req, and waiting. */
#include "worker/io/request.h"

#include "common/base/clock.h"
#include "worker/collective/engine/engine_internal.h"
#include "worker/context.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "worker/tensor/table_request.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Thread_local bool sdk_thread;
static _Thread_local int in_callback;

bool request_is_sdk_thread(void)
{
    return sdk_thread || in_callback > 0;
}
void request_callback(bool begins)
{
    in_callback += begins ? 1 : -1;
}
void request_mark_sdk_thread(void)
{
    sdk_thread = true;
}

/* ---- the table ------------------------------------------------------------------------------- */
static request *at_place(const request_table *table, uint32_t place)
{
    return &table->block[place / REQUEST_BLOCK][place % REQUEST_BLOCK];
}

pen_status request_table_init(request_table *table, uint64_t in_flight_max, pen_error *why)
{
    memset(table, 0, sizeof *table);
    table->in_flight_max = in_flight_max;
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return why_set(why, PEN_NO_MEMORY, "no memory for a condition");
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&table->lock, NULL);
    pthread_cond_init(&table->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    return PEN_OK;
}

void request_table_fini(request_table *table)
{
    for (uint32_t i = 0; i < table->n; i++) free(at_place(table, i)->why);
    for (uint32_t b = 0; b * REQUEST_BLOCK < table->n; b++) free(table->block[b]);
    free(table->block);
    pthread_cond_destroy(&table->ended);
    pthread_mutex_destroy(&table->lock);
}

/* One that was never used.  NULL: no memory. */
static request *grow(request_table *table)
{
    const uint32_t b = table->n / REQUEST_BLOCK;
    if (table->n == REQUESTS_MAX) return NULL;
    if (table->n % REQUEST_BLOCK == 0) {
        if (!VEC_MORE(table->block, b)) return NULL;
        table->block[b] = calloc(REQUEST_BLOCK, sizeof(request));
        if (table->block[b] == NULL) return NULL;
    }
    request *r = at_place(table, table->n);
    r->id      = table->n++;
    return r;
}

/* id = generation << 32 | place.  The generation grows with each use, so a stale pen_req is recognised. */
static request *take(request_table *table)
{
    request *r = table->free != NULL ? table->free : grow(table);
    if (r == NULL) return NULL;
    table->free = r->next;
    uint64_t id = r->id + ((uint64_t)1 << 32);
    memset(r, 0, sizeof *r);
    r->id = id;
    table->in_flight++;
    return r;
}

static void give(request_table *table, request *r)
{
    free(r->why);
    r->why      = NULL;
    r->is_done  = false;
    r->next     = table->free;
    table->free = r;
    r->id += (uint64_t)1 << 32;
}

static request *find_request(request_table *table, uint64_t id)
{
    if ((uint32_t)id >= table->n) return NULL;
    request *r = at_place(table, (uint32_t)id);
    return r->id == id ? r : NULL;
}

/* ---- begin, end ------------------------------------------------------------------------------ */
static pen_status wait_for_room(request_table *table, const pen_opts *o)
{
    bool may_wait = !request_is_sdk_thread() && (o == NULL || (o->flags & PEN_NOWAIT) == 0);
    while (table->in_flight >= table->in_flight_max) {
        if (!may_wait) return PEN_AGAIN;
        pthread_cond_wait(&table->ended, &table->lock);
    }
    return PEN_OK;
}

pen_status request_begin(pen_ctx *ctx, request_kind kind, const pen_opts *o, pen_req *req,
                         request **out)
{
    request_table *table = &ctx->requests;
    pthread_mutex_lock(&table->lock);
    pen_status status = kind == REQUEST_LEAVE ? PEN_OK : wait_for_room(table, o);
    request *r        = status == PEN_OK ? take(table) : NULL;
    pthread_mutex_unlock(&table->lock);
    if (status != PEN_OK)
        return last_error_report(status,
                                 "%llu requests are in flight; wait for one, or raise requests_max",
                                 (unsigned long long)table->in_flight_max);
    if (r == NULL) return last_error_report(PEN_NO_MEMORY, "no memory for another request");

    const uint64_t patience_ms = context_patience(ctx, o);
    r->ctx                     = ctx;
    r->kind                    = kind;
    r->priority                = o != NULL ? o->priority : 0;
    r->begun_ms                = clock_ms(&clock_real);
    r->deadline_ms             = patience_ms > 0 ? r->begun_ms + patience_ms : 0;
    if (o != NULL && req != NULL) {
        r->done = o->done;
        r->user = o->user;
    }
    if (req != NULL) *req = r->done != NULL ? (pen_req){0} : (pen_req){ctx, r->id};
    *out = r;
    return PEN_OK;
}

void request_abandon(request *r)
{
    request_table *table = &r->ctx->requests;
    pthread_mutex_lock(&table->lock);
    table->in_flight--;
    give(table, r);
    pthread_mutex_unlock(&table->lock);
}

void request_end(request *r, pen_status status, const pen_error *why)
{
    if (r->kind == REQUEST_STEP && r->u.step.decided != NULL)
        request_end(r->u.step.decided, status, why);
    pen_error own;
    if (r->kind == REQUEST_KV) {
        const pen_status all = table_request_end(r->u.kv, status, &r->result.count, &own);
        if (all != status) why = &own;
        status = all;
    }
    request_table *table = &r->ctx->requests;
    r->result.status     = status;
    r->result.seconds    = (double)(clock_ms(&clock_real) - r->begun_ms) / 1000;
    if (status != PEN_OK && why != NULL) {
        r->why = malloc(sizeof *r->why);
        if (r->why != NULL) *r->why = *why;
    }
    pthread_mutex_lock(&table->lock);
    r->next = NULL;
    if (table->told_tail == NULL)
        table->told_head = r;
    else
        table->told_tail->next = r;
    table->told_tail = r;
    pthread_mutex_unlock(&table->lock);
}

static void run_callback(request_table *table, request *r)
{
    pen_result result = r->result;
    if (r->why != NULL) last_error_set(r->why);
    request_callback(true);
    r->done(&result, r->user);
    request_callback(false);
    pthread_mutex_lock(&table->lock);
    give(table, r);
    pthread_mutex_unlock(&table->lock);
}

void request_notify(request_table *table)
{
    request *callbacks = NULL, **last = &callbacks;
    bool is_awaited = false, was_full = false;
    pthread_mutex_lock(&table->lock);
    request *ended = table->told_head;
    if (ended != NULL) atomic_fetch_add(&table->n_tells, 1);
    table->told_head = table->told_tail = NULL;
    for (request *r = ended, *next; r != NULL; r = next) {
        next = r->next;
        was_full |= table->in_flight-- >= table->in_flight_max;
        if (r->done != NULL && !r->is_awaited) {
            *last = r; /* freed after its callback */
            last  = &r->next;
            continue;
        }
        is_awaited |= r->is_awaited;
        r->is_done = true;
    }
    *last = NULL;
    was_full |= ended != NULL && table->in_flight == 0 && table->is_draining;
    if (is_awaited || was_full) pthread_cond_broadcast(&table->ended);
    pthread_mutex_unlock(&table->lock);
    for (request *r = callbacks, *next; r != NULL; r = next) {
        next = r->next;
        run_callback(table, r);
    }
}

void request_drain(request_table *table)
{
    pthread_mutex_lock(&table->lock);
    table->is_draining = true;
    while (table->in_flight > 0) pthread_cond_wait(&table->ended, &table->lock);
    table->is_draining = false;
    pthread_mutex_unlock(&table->lock);
}

/* ---- waiting --------------------------------------------------------------------------------- */
static pen_status conclude(request_table *table, request *r, pen_result *result)
{
    pen_status status = r->result.status;
    if (result != NULL) *result = r->result;
    if (r->why != NULL)
        last_error_set(r->why);
    else if (status != PEN_OK)
        last_error_report(status, "%s", pen_status_info(status)->text);
    give(table, r);
    return status;
}

/* A thread that waits for a collective drives it, which saves a thread switch.  Call with the lock, which is released
 * meanwhile.  False: nothing to drive. */
static bool drive(request_table *table, pen_group *group, uint64_t until_ms)
{
    const unsigned long long seen = atomic_load(&table->n_tells);
    pthread_mutex_unlock(&table->lock);
    const bool has_more = coll_attend(&group, 1, &table->n_tells, seen, until_ms);
    pthread_mutex_lock(&table->lock);
    return has_more || atomic_load(&table->n_tells) != seen;
}

static pen_group *group_of(const request *r)
{
    return r->kind == REQUEST_COLL ? r->u.coll.group : NULL;
}

static pen_status wait_locked(request_table *table, request *r, pen_result *result)
{
    pen_group *group = group_of(r);
    while (!r->is_done) {
        r->is_awaited = true;
        if (group == NULL || !drive(table, group, 0))
            pthread_cond_wait(&table->ended, &table->lock);
    }
    return conclude(table, r, result);
}

static pen_status refuse_to_wait(const char *what)
{
    return last_error_report(
        PEN_WRONG_STATE, "%s: called from a callback, where waiting would wait for itself", what);
}

pen_status request_await(request *r, pen_result *result)
{
    request_table *table = &r->ctx->requests;
    pthread_mutex_lock(&table->lock);
    const pen_status status = wait_locked(table, r, result);
    pthread_mutex_unlock(&table->lock);
    return status;
}

pen_status request_wait(request_table *table, pen_req *req, pen_result *result)
{
    pen_status status;
    pthread_mutex_lock(&table->lock);
    request *r = find_request(table, req->id);
    if (r == NULL)
        status =
            last_error_report(PEN_INVALID_ARGUMENT, "pen_wait: the request was already waited for");
    else if (!r->is_done && request_is_sdk_thread())
        status = refuse_to_wait("pen_wait");
    else
        status = wait_locked(table, r, result);
    pthread_mutex_unlock(&table->lock);
    if (r != NULL && status != PEN_WRONG_STATE) *req = (pen_req){0};
    return status;
}

/* NULL: it has ended, or is no collective. */
static request *collective_in_progress(request_table *table, const pen_req *req)
{
    if (request_is_sdk_thread()) return NULL;
    pthread_mutex_lock(&table->lock);
    request *r = find_request(table, req->id);
    if (r != NULL && (r->is_done || group_of(r) == NULL)) r = NULL;
    pthread_mutex_unlock(&table->lock);
    return r;
}

pen_status request_wait_stream(request_table *table, pen_req *req, void *stream)
{
    request *r = collective_in_progress(table, req);
    pen_error why;
    const pen_status status = r != NULL ? engine_follow(group_of(r), r, stream, &why) : PEN_AGAIN;
    if (status == PEN_OK) {
        request_end(r, PEN_OK, NULL);
        request_notify(table);
    }
    if (status != PEN_OK && status != PEN_AGAIN) return last_error_set(&why);
    return request_wait(table, req, NULL);
}

/* ---- values of a step ------------------------------------------------------------------------ */
void request_values_begin(request_table *table, pen_tensor *t)
{
    pthread_mutex_lock(&table->lock);
    t->is_coming = true;
    pthread_mutex_unlock(&table->lock);
}

void request_values_come(request_table *table, pen_tensor *t)
{
    pthread_mutex_lock(&table->lock);
    t->is_coming = false;
    if (table->awaits_values) pthread_cond_broadcast(&table->ended);
    pthread_mutex_unlock(&table->lock);
}

static bool is_any_coming(pen_tensor *const *tensor, const uint32_t *index, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (tensor[index[i]]->is_coming) return true;
    return false;
}

bool request_wait_values(request_table *table, const pen_req *req, pen_tensor *const *tensor,
                         const uint32_t *index, uint32_t n)
{
    pthread_mutex_lock(&table->lock);
    request *r           = request_is_sdk_thread() ? NULL : find_request(table, req->id);
    table->awaits_values = true;
    while (r != NULL && !r->is_done && is_any_coming(tensor, index, n)) {
        r->is_awaited = true;
        pthread_cond_wait(&table->ended, &table->lock);
    }
    table->awaits_values = false;
    const bool has_come  = r != NULL && !r->is_done;
    pthread_mutex_unlock(&table->lock);
    return has_come;
}

/* ---- waiting for one of many ----------------------------------------------------------------- */
static request *first_done(request_table *table, const pen_req *reqs, size_t n, size_t *index,
                           size_t *live, bool await)
{
    *live = 0;
    for (size_t i = 0; i < n; i++) {
        request *r = reqs[i].ctx != NULL ? find_request(table, reqs[i].id) : NULL;
        if (r == NULL) continue;
        ++*live;
        *index = i;
        if (r->is_done) return r;
        if (await) r->is_awaited = true;
    }
    return NULL;
}

/* The group, when all live requests are collectives of one group; else NULL. */
static pen_group *group_of_all(request_table *table, const pen_req *reqs, size_t n)
{
    pen_group *group = NULL;
    for (size_t i = 0; i < n; i++) {
        const request *r = reqs[i].ctx != NULL ? find_request(table, reqs[i].id) : NULL;
        if (r == NULL) continue;
        if (group_of(r) == NULL || (group != NULL && group_of(r) != group)) return NULL;
        group = group_of(r);
    }
    return group;
}

/* False: the deadline has passed. */
static bool wait_until(request_table *table, uint64_t until_ms)
{
    const struct timespec until = {.tv_sec  = (time_t)(until_ms / 1000),
                                   .tv_nsec = (long)(until_ms % 1000 * 1000000)};
    return pthread_cond_timedwait(&table->ended, &table->lock, &until) == 0;
}

static pen_status wait_any_locked(request_table *table, pen_req *reqs, size_t n, int64_t timeout_ms,
                                  size_t *index, pen_result *result)
{
    const uint64_t until_ms = timeout_ms > 0 ? clock_ms(&clock_real) + (uint64_t)timeout_ms : 0;
    pen_group *group        = group_of_all(table, reqs, n);
    bool is_late            = timeout_ms == 0;
    for (;;) {
        size_t live, at = 0;
        request *r = first_done(table, reqs, n, &at, &live, !is_late);
        if (r != NULL) {
            if (index != NULL) *index = at;
            reqs[at] = (pen_req){0};
            return conclude(table, r, result);
        }
        if (live == 0) return PEN_END;
        if (is_late) return PEN_AGAIN;
        if (request_is_sdk_thread()) return refuse_to_wait("pen_wait_any");
        if (group != NULL && drive(table, group, until_ms))
            is_late = until_ms != 0 && clock_ms(&clock_real) >= until_ms;
        else if (timeout_ms < 0)
            pthread_cond_wait(&table->ended, &table->lock);
        else
            is_late = !wait_until(table, until_ms);
    }
}

pen_status request_wait_any(request_table *table, pen_req *reqs, size_t n, int64_t timeout_ms,
                            size_t *index, pen_result *result)
{
    pthread_mutex_lock(&table->lock);
    const pen_status status = wait_any_locked(table, reqs, n, timeout_ms, index, result);
    pthread_mutex_unlock(&table->lock);
    return status;
}
