/* unsupported.c - the functions of penstock.h whose machinery comes later, and what they say until
 * then. */
#include "worker/api/api.h"

#include <string.h>

static const struct {
    const char *function, *why;
} rows[] = {
    {"pen_table_new", "tables by key come later"},
    {"pen_kv_push", "tables by key come later"},
    {"pen_kv_pull", "tables by key come later"},
    {"pen_kv_push_pull", "tables by key come later"},
    {"pen_serve", "handlers of your own on servers come later; `penstock server` serves tensors"},
};

pen_status api_unsupported(const char *function)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].function, function) == 0)
            return last_error_say(PEN_UNSUPPORTED, "%s is not in this version: %s", function,
                                  rows[i].why);
    return last_error_say(PEN_UNSUPPORTED, "%s is not in this version", function);
}

/* clang-format off */
#define NOT_YET(name, ...) pen_status name(__VA_ARGS__) { return api_unsupported(#name); }
#pragma GCC diagnostic ignored "-Wunused-parameter"


NOT_YET(pen_table_new, pen_ctx *ctx, const pen_table_desc *d, pen_table **t)
NOT_YET(pen_kv_push, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_kv_pull, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_kv_push_pull, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_serve, const char *const settings[], const pen_handler *handlers, int n)
/* clang-format on */
