/* unsupported.c - the functions of penstock.h whose machinery comes later, and what they say until
 * then. */
#include "worker/api.h"

#include <string.h>

static const struct {
    const char *function, *why;
} rows[] = {
    {"pen_spawn", "start ranks with `penstock run`"},
    {"pen_group_ranks", "there is one group, the world, and position is rank"},
    {"pen_group_new", "there is one group, the world"},
    {"pen_group_split", "there is one group, the world"},
    {"pen_group_shrink", "the loss of a worker ends the job"},
    {"pen_wait_stream", "this build has no CUDA device"},
    {"pen_view", "give every tensor memory of your own, or of pen_alloc"},
    {"pen_table_new", "tables by key come later"},
    {"pen_kv_push", "tables by key come later"},
    {"pen_kv_pull", "tables by key come later"},
    {"pen_kv_push_pull", "tables by key come later"},
    {"pen_serve", "handlers of your own on servers come later; `penstock server` serves tensors"},
    {"pen_on_event", "members do not change while a job runs"},
    {"pen_state_add", "keep state of your own yourself"},
    {"pen_restore", "the setting resume=yes goes on from the newest snapshot at the start"},
    {"pen_export", "write the parameters yourself"},
    {"pen_import", "read the parameters yourself, on rank 0, before pen_commit"},
    {"pen_mark", "there is no timeline yet"},
    {"pen_store_set", "the key-value store comes later"},
    {"pen_store_get", "the key-value store comes later"},
    {"pen_store_add", "the key-value store comes later"},
};

pen_status api_unsupported(const char *function)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].function, function) == 0)
            return last_error_say(PEN_UNSUPPORTED, "%s is not in this version: %s", function,
                                  rows[i].why);
    if (strncmp(function, "pen_sampler", 11) == 0)
        return last_error_say(
            PEN_UNSUPPORTED,
            "%s is not in this version: take sample i on rank i mod world_size yourself", function);
    return last_error_say(PEN_UNSUPPORTED,
                          "%s is not in this version: collectives other than all_reduce of a few "
                          "values and barrier come later",
                          function);
}

/* clang-format off */
#define NOT_YET(name, ...) pen_status name(__VA_ARGS__) { return api_unsupported(#name); }
#pragma GCC diagnostic ignored "-Wunused-parameter"

int  pen_spawn(int n, int (*fn)(pen_ctx *ctx, void *arg), void *arg) { api_unsupported("pen_spawn"); return 1; }
int  pen_group_ranks(const pen_group *g, int *ranks, int cap) { api_unsupported("pen_group_ranks"); return -1; }
void pen_group_free(pen_group *g) { (void)g; /* the world belongs to its context */ }
void pen_sampler_free(pen_sampler *s) { (void)s; /* none can exist */ }
void *pen_view(pen_ctx *ctx, pen_tensor *t, int64_t slice, pen_what what) { api_unsupported("pen_view"); return NULL; }

NOT_YET(pen_group_new, pen_group *parent, const int *ranks, int n, pen_group **g)
NOT_YET(pen_group_split, pen_group *parent, int color, int key, pen_group **g)
NOT_YET(pen_group_shrink, pen_group *g, pen_group **survivors)
NOT_YET(pen_wait_stream, pen_req *req, void *stream)
NOT_YET(pen_broadcast, pen_group *g, void *data, size_t n, pen_dtype t, int root, const pen_opts *o, pen_req *req)
NOT_YET(pen_reduce, pen_group *g, const void *in, void *out, size_t n, pen_dtype t, pen_op op, int root, const pen_opts *o, pen_req *req)
NOT_YET(pen_gather, pen_group *g, const void *in, size_t n, void *out, const size_t *counts, pen_dtype t, int root, const pen_opts *o, pen_req *req)
NOT_YET(pen_all_gather, pen_group *g, const void *in, size_t n, void *out, const size_t *counts, pen_dtype t, const pen_opts *o, pen_req *req)
NOT_YET(pen_scatter, pen_group *g, const void *in, const size_t *counts, void *out, size_t n, pen_dtype t, int root, const pen_opts *o, pen_req *req)
NOT_YET(pen_reduce_scatter, pen_group *g, const void *in, const size_t *counts, void *out, size_t n, pen_dtype t, pen_op op, const pen_opts *o, pen_req *req)
NOT_YET(pen_all_to_all, pen_group *g, const void *in, const size_t *in_counts, void *out, const size_t *out_counts, size_t n, pen_dtype t, const pen_opts *o, pen_req *req)
NOT_YET(pen_send, pen_group *g, const void *data, size_t n, pen_dtype t, int to, int tag, const pen_opts *o, pen_req *req)
NOT_YET(pen_recv, pen_group *g, void *data, size_t n, pen_dtype t, int from, int tag, const pen_opts *o, pen_req *req)
NOT_YET(pen_batch_begin, pen_ctx *ctx)
NOT_YET(pen_batch_end, pen_ctx *ctx, const pen_opts *o, pen_req *req)
NOT_YET(pen_broadcast_bytes, pen_group *g, pen_bytes *io, int root, const pen_opts *o)
NOT_YET(pen_gather_bytes, pen_group *g, const void *in, size_t size, pen_bytes *out, int root, const pen_opts *o)
NOT_YET(pen_table_new, pen_ctx *ctx, const pen_table_desc *d, pen_table **t)
NOT_YET(pen_kv_push, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_kv_pull, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_kv_push_pull, pen_table *t, const pen_kv *kv, const pen_opts *o, pen_req *req)
NOT_YET(pen_serve, const char *const settings[], const pen_handler *handlers, int n)
NOT_YET(pen_on_event, pen_ctx *ctx, void (*fn)(pen_ctx *ctx, const pen_event *ev, void *user), void *user)
NOT_YET(pen_state_add, pen_ctx *ctx, const char *name, void *data, size_t size, int per_rank)
NOT_YET(pen_restore, pen_ctx *ctx, int64_t step, const pen_opts *o)
NOT_YET(pen_export, pen_ctx *ctx, const char *path, const char *format, const pen_opts *o)
NOT_YET(pen_import, pen_ctx *ctx, const char *path, const pen_opts *o)
NOT_YET(pen_sampler_new, pen_ctx *ctx, const pen_sampler_desc *d, pen_sampler **s)
NOT_YET(pen_sampler_next, pen_sampler *s, int64_t *index, size_t want, size_t *got)
NOT_YET(pen_sampler_seek, pen_sampler *s, int64_t epoch, int64_t consumed)
NOT_YET(pen_sampler_tell, const pen_sampler *s, int64_t *epoch, int64_t *consumed)
NOT_YET(pen_mark, pen_ctx *ctx, const char *name, int begin)
NOT_YET(pen_store_set, pen_ctx *ctx, const char *key, const void *data, size_t size)
NOT_YET(pen_store_get, pen_ctx *ctx, const char *key, pen_bytes *data, const pen_opts *o)
NOT_YET(pen_store_add, pen_ctx *ctx, const char *key, int64_t delta, int64_t *value)
/* clang-format on */
