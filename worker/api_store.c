/* api_store.c - pen_store_set, _get, _add: a small key-value store, held by the scheduler; alone, by
 * the context. */
#include "worker/api_store.h"

#include "common/clock.h"
#include "common/fp_env.h"
#include "common/why.h"
#include "common/utf8.h"
#include "scheduler/value_table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct api_values {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    value_table *table;
};

/* ---- what all check -------------------------------------------------------------------------- */
/* The wire cleans texts of control characters and of what is no UTF-8, which would make two keys one. */
static pen_status check_key(const char *call, const char *key)
{
    if (key == NULL || key[0] == '\0')
        return last_error_say(PEN_INVALID_ARGUMENT, "%s: the key is %s", call,
                              key == NULL ? "NULL" : "empty");
    if (strlen(key) >= VALUE_KEY_BYTES)
        return last_error_say(PEN_INVALID_ARGUMENT, "%s: the key has %zu bytes; at most %d", call,
                              strlen(key), VALUE_KEY_BYTES - 1);
    if (!utf8_is_clean(key))
        return last_error_say(PEN_INVALID_ARGUMENT,
                              "%s: the key has a control character, or is not UTF-8", call);
    return PEN_OK;
}

static pen_status run(pen_ctx *ctx, const pen_opts *o, const requests_change *change,
                      pen_bytes *out, int64_t *value)
{
    request *r;
    pen_status status = request_begin(ctx, REQUEST_STORE, o, NULL, &r);
    if (status != PEN_OK) return status;
    r->u.store.change = *change;
    r->u.store.out    = out;
    r->u.store.value  = value;
    return request_run(r, o, NULL);
}

/* ---- alone ----------------------------------------------------------------------------------- */
static api_values *make_values(void)
{
    api_values *v = calloc(1, sizeof *v);
    if (v == NULL) return NULL;
    v->table = value_table_create(VALUE_TABLE_BYTES_MAX);
    if (v->table == NULL) {
        free(v);
        return NULL;
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->changed, &clock);
    pthread_condattr_destroy(&clock);
    return v;
}

void api_values_destroy(api_values *values)
{
    if (values == NULL) return;
    value_table_destroy(values->table);
    pthread_cond_destroy(&values->changed);
    pthread_mutex_destroy(&values->lock);
    free(values);
}

static api_values *values_of(pen_ctx *ctx)
{
    pthread_mutex_lock(&ctx->watch_lock);
    if (ctx->values == NULL) ctx->values = make_values();
    api_values *v = ctx->values;
    pthread_mutex_unlock(&ctx->watch_lock);
    if (v == NULL) last_error_say(PEN_NO_MEMORY, "no memory for a key-value store");
    return v;
}

static pen_status change_alone(pen_ctx *ctx, const requests_change *c, int64_t *value)
{
    pen_error why;
    api_values *v = values_of(ctx);
    if (v == NULL) return PEN_NO_MEMORY;
    pthread_mutex_lock(&v->lock);
    const pen_status status = c->op == WIRE_STORE_SET
                                  ? value_table_set(v->table, c->key, c->data, c->size, &why)
                                  : value_table_add(v->table, c->key, c->delta, value, &why);
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
    return status == PEN_OK ? PEN_OK : last_error_set(&why);
}

static bool is_past(const struct timespec *until)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > until->tv_sec ||
           (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
}

/* Another thread may set it.  deadline_ms < 0: waits for ever; v->lock is held. */
static const void *await_alone(api_values *v, const char *key, int64_t deadline_ms, size_t *size)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += deadline_ms / 1000;
    until.tv_nsec += deadline_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    const void *data;
    while ((data = value_table_get(v->table, key, size)) == NULL) {
        if (deadline_ms < 0)
            pthread_cond_wait(&v->changed, &v->lock);
        else if (is_past(&until))
            return NULL;
        else
            pthread_cond_timedwait(&v->changed, &v->lock, &until);
    }
    return data;
}

static pen_status get_alone(pen_ctx *ctx, const char *key, pen_bytes *out, const pen_opts *o)
{
    api_values *v = values_of(ctx);
    if (v == NULL) return PEN_NO_MEMORY;
    const int64_t deadline =
        o != NULL && o->deadline_ms != 0 ? o->deadline_ms : ctx->settings.deadline_ms;
    size_t size;
    pthread_mutex_lock(&v->lock);
    const void *data = await_alone(v, key, deadline, &size);
    void *copy       = data != NULL ? malloc(size + 1) : NULL;
    if (copy != NULL) memcpy(copy, data, size);
    pthread_mutex_unlock(&v->lock);
    if (data == NULL)
        return last_error_say(PEN_TIMED_OUT, "pen_store_get: nobody has set '%.200s' within %.3g s",
                              key, (double)deadline / 1000);
    if (copy == NULL) return last_error_say(PEN_NO_MEMORY, "no memory for %zu bytes", size);
    *out = (pen_bytes){copy, size};
    return PEN_OK;
}

/* ---- the three ------------------------------------------------------------------------------- */
static bool is_alone(const pen_ctx *ctx)
{
    return ctx->mode == MODE_LOCAL;
}

static pen_status change(pen_ctx *ctx, const requests_change *what, int64_t *value)
{
    return is_alone(ctx) ? change_alone(ctx, what, value) : run(ctx, NULL, what, NULL, value);
}

pen_status pen_store_set(pen_ctx *ctx, const char *key, const void *data, size_t size)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_store_set", true);
    if (status != PEN_OK) return status;
    status = check_key("pen_store_set", key);
    if (status == PEN_OK && data == NULL && size > 0)
        status = last_error_say(PEN_INVALID_ARGUMENT, "pen_store_set: %zu bytes at NULL", size);
    if (status == PEN_OK && size > VALUE_BYTES_MAX)
        status = last_error_say(PEN_UNSUPPORTED,
                                "pen_store_set: '%.200s' would have %zu bytes; a value has at most "
                                "%d",
                                key, size, VALUE_BYTES_MAX);
    const requests_change what = {.op = WIRE_STORE_SET, .key = key, .data = data, .size = size};
    if (status == PEN_OK) status = change(ctx, &what, NULL);
    return context_leave(ctx, status);
}

pen_status pen_store_get(pen_ctx *ctx, const char *key, pen_bytes *data, const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_store_get", true);
    if (status != PEN_OK) return status;
    status = api_check_opts(o);
    if (status == PEN_OK) status = check_key("pen_store_get", key);
    if (status == PEN_OK && data == NULL)
        status = last_error_say(PEN_INVALID_ARGUMENT, "pen_store_get: data is NULL");
    const requests_change what = {.op = WIRE_STORE_GET, .key = key};
    if (status == PEN_OK)
        status = is_alone(ctx) ? get_alone(ctx, key, data, o) : run(ctx, o, &what, data, NULL);
    return context_leave(ctx, status);
}

pen_status pen_store_add(pen_ctx *ctx, const char *key, int64_t delta, int64_t *value)
{
    FP_ENV_OURS();
    int64_t unwanted;
    pen_status status = context_enter(ctx, "pen_store_add", true);
    if (status != PEN_OK) return status;
    status                     = check_key("pen_store_add", key);
    const requests_change what = {.op = WIRE_STORE_ADD, .key = key, .delta = delta};
    if (status == PEN_OK) status = change(ctx, &what, value != NULL ? value : &unwanted);
    return context_leave(ctx, status);
}
