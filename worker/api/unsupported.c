/* unsupported.c - functions of penstock.h that this version does not have, and the error they return. */
#include "worker/api/api.h"

/* clang-format off */
#define NOT_YET(name, why, ...) \
    pen_status name(__VA_ARGS__) { return last_error_report(PEN_UNSUPPORTED, #name " is not in this version: " why); }
#define TABLES "tables by key come later"
#pragma GCC diagnostic ignored "-Wunused-parameter"

NOT_YET(pen_table_new, TABLES, pen_ctx *ctx, const pen_table_desc *d, pen_table **t)
NOT_YET(pen_kv_push, TABLES, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_kv_pull, TABLES, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_kv_push_pull, TABLES, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_serve, "handlers of your own on servers come later; `penstock server` serves tensors",
        const char *const settings[], const pen_handler *handlers, int n)
/* clang-format on */
