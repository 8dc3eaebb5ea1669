/* api_store.c - pen_store_set, _get, _add: a small key-value store in the scheduler, or in the link of a worker
 * alone. */
#include "worker/api/api.h"

#include "common/base/utf8.h"
#include "common/system/fp_env.h"
#include "common/containers/value_table.h"

#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */
/* The wire cleans control characters and invalid UTF-8 out of texts, which would make two keys equal. */
static pen_status check_key(const char *call, const char *key)
{
    if (key == NULL || key[0] == '\0')
        return last_error_report(PEN_INVALID_ARGUMENT, "%s: the key is %s", call,
                                 key == NULL ? "NULL" : "empty");
    if (strlen(key) >= VALUE_KEY_BYTES)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "%s: the key has %zu bytes; at most %d are allowed", call,
                                 strlen(key), VALUE_KEY_BYTES - 1);
    if (!utf8_is_clean(key))
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "%s: invalid key; expected UTF-8 without control characters",
                                 call);
    return PEN_OK;
}

static pen_status run_change(pen_ctx *ctx, const pen_opts *o, const unanswered_change *change,
                             pen_bytes *out, int64_t *value)
{
    request *r;
    pen_status status = request_begin(ctx, REQUEST_STORE, o, NULL, &r);
    if (status != PEN_OK) return status;
    r->u.store.change = *change;
    r->u.store.out    = out;
    r->u.store.value  = value;
    return api_start(r, o, NULL);
}

pen_status pen_store_set(pen_ctx *ctx, const char *key, const void *data, size_t size)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_store_set", true);
    if (status != PEN_OK) return status;
    status = check_key("pen_store_set", key);
    if (status == PEN_OK && data == NULL && size > 0)
        status = last_error_report(PEN_INVALID_ARGUMENT,
                                   "pen_store_set: data is NULL, but size is %zu", size);
    if (status == PEN_OK && size > VALUE_BYTES_MAX)
        status = last_error_report(
            PEN_UNSUPPORTED,
            "pen_store_set: the value of '%.200s' has %zu bytes; at most %d are allowed", key, size,
            VALUE_BYTES_MAX);
    const unanswered_change what = {.op = WIRE_STORE_SET, .key = key, .data = data, .size = size};
    if (status == PEN_OK) status = run_change(ctx, NULL, &what, NULL, NULL);
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
        status = last_error_report(PEN_INVALID_ARGUMENT, "pen_store_get: data is NULL");
    const unanswered_change what = {.op = WIRE_STORE_GET, .key = key};
    if (status == PEN_OK) status = run_change(ctx, o, &what, data, NULL);
    return context_leave(ctx, status);
}

pen_status pen_store_add(pen_ctx *ctx, const char *key, int64_t delta, int64_t *value)
{
    FP_ENV_OURS();
    int64_t unwanted;
    pen_status status = context_enter(ctx, "pen_store_add", true);
    if (status != PEN_OK) return status;
    status                       = check_key("pen_store_add", key);
    const unanswered_change what = {.op = WIRE_STORE_ADD, .key = key, .delta = delta};
    if (status == PEN_OK)
        status = run_change(ctx, NULL, &what, NULL, value != NULL ? value : &unwanted);
    return context_leave(ctx, status);
}
