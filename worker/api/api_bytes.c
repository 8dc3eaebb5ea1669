/* api_bytes.c - objects of bytes: pen_broadcast_bytes, pen_gather_bytes.  Lengths are sent first. */
#include "worker/api/api_coll.h"

#include "common/system/fp_env.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static pen_status run_bytes(pen_group *g, const char *function, coll_call call, const pen_opts *o)
{
    call.scale              = 1;
    call.label              = api_coll_label(o);
    const pen_status status = api_coll_check(g, function, &call);
    return status == PEN_OK ? api_coll_wait(g, &call, o) : status;
}

static pen_status broadcast_bytes(pen_group *g, pen_bytes *io, int root, const pen_opts *o)
{
    uint64_t size        = io->size;
    void *data           = io->data;
    const bool is_root   = g->rank == root;
    const coll_call head = {
        .kind = COLL_BROADCAST, .dtype = PEN_U64, .root = root, .n = 1, .in = &size, .out = &size};
    pen_status status = run_bytes(g, "pen_broadcast_bytes", head, o);
    if (status != PEN_OK) return status;
    if (!is_root && (data = pen_alloc(g->ctx, size, PEN_HOST)) == NULL) return PEN_NO_MEMORY;
    const coll_call body = {
        .kind = COLL_BROADCAST, .dtype = PEN_U8, .root = root, .n = size, .in = data, .out = data};
    if (size > 0) status = run_bytes(g, "pen_broadcast_bytes", body, o);
    if (is_root) return status;
    if (status == PEN_OK)
        *io = (pen_bytes){data, size};
    else
        pen_free(data);
    return status;
}

static pen_status refuse_batch(const pen_group *g, const char *function)
{
    if (!api_batch_is_open(g->ctx)) return PEN_OK;
    return last_error_report(
        PEN_WRONG_STATE,
        "%s: not allowed in a batch, because its length travels first; call it "
        "after pen_batch_end()",
        function);
}

pen_status pen_broadcast_bytes(pen_group *g, pen_bytes *io, int root, const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = api_coll_enter(g, "pen_broadcast_bytes", o, true);
    if (status != PEN_OK) return status;
    status = refuse_batch(g, "pen_broadcast_bytes");
    if (status == PEN_OK && io == NULL)
        status = last_error_report(PEN_INVALID_ARGUMENT, "pen_broadcast_bytes: io is NULL");
    if (status == PEN_OK) status = broadcast_bytes(g, io, root, o);
    return context_leave(g->ctx, status);
}

typedef struct {
    uint64_t *sizes; /* [size] */
    size_t *counts;
    unsigned char *all; /* all objects, one after the other */
} gathering;

static pen_status gather_sizes(pen_group *g, uint64_t size, gathering *w, const pen_opts *o)
{
    const coll_call call = {
        .kind = COLL_ALL_GATHER, .dtype = PEN_U64, .n = 1, .in = &size, .out = w->sizes};
    pen_status status = run_bytes(g, "pen_gather_bytes", call, o);
    size_t all = 0; /* a member may say anything: with all, less than half of the address space */
    for (int i = 0; i < g->size && status == PEN_OK; i++) {
        w->counts[i] = (size_t)w->sizes[i];
        if (w->sizes[i] > PTRDIFF_MAX - all)
            status = last_error_report(
                PEN_CORRUPT, "pen_gather_bytes: rank %d says that its object has %llu bytes",
                g->ranks[i], (unsigned long long)w->sizes[i]);
        else
            all += w->counts[i];
    }
    return status;
}

/* Each object gets its own memory, for pen_free(). */
static pen_status hand_out(pen_group *g, const gathering *w, pen_bytes *out)
{
    size_t at = 0;
    int n     = 0;
    memset(out, 0, (size_t)g->size * sizeof *out);
    for (; n < g->size; n++) {
        out[n] = (pen_bytes){pen_alloc(g->ctx, w->counts[n], PEN_HOST), w->counts[n]};
        if (out[n].data == NULL) break;
        if (out[n].size > 0) memcpy(out[n].data, w->all + at, out[n].size);
        at += out[n].size;
    }
    if (n == g->size) return PEN_OK;
    while (n-- > 0) pen_free(out[n].data);
    memset(out, 0, (size_t)g->size * sizeof *out);
    return PEN_NO_MEMORY;
}

static pen_status gather_bytes(pen_group *g, const void *in, size_t size, pen_bytes *out, int root,
                               gathering *w, const pen_opts *o)
{
    pen_status status = gather_sizes(g, size, w, o);
    if (status != PEN_OK) return status;
    const bool gets = root == PEN_EVERY || g->rank == root;
    const size_t n  = coll_part_offset(w->counts, 0, g->size);
    if (gets && (w->all = malloc(n + 1)) == NULL)
        return last_error_report(PEN_NO_MEMORY, "no memory for %zu bytes", n);
    const coll_call call = {.kind   = root == PEN_EVERY ? COLL_ALL_GATHER : COLL_GATHER,
                            .dtype  = PEN_U8,
                            .root   = root == PEN_EVERY ? 0 : root,
                            .n      = size,
                            .in     = in,
                            .out    = w->all,
                            .counts = w->counts};
    if (n > 0) status = run_bytes(g, "pen_gather_bytes", call, o);
    return status == PEN_OK && gets ? hand_out(g, w, out) : status;
}

static pen_status check_gather(const pen_group *g, const void *in, size_t size,
                               const pen_bytes *out, int root)
{
    if (root != PEN_EVERY && (root < 0 || root >= g->size))
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_gather_bytes: invalid root %d; the group has 0 to %d", root,
                                 g->size - 1);
    if (out == NULL && (root == PEN_EVERY || root == g->rank))
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_gather_bytes: out is NULL");
    if (in == NULL && size > 0)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_gather_bytes: in is NULL");
    return refuse_batch(g, "pen_gather_bytes");
}

pen_status pen_gather_bytes(pen_group *g, const void *in, size_t size, pen_bytes *out, int root,
                            const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = api_coll_enter(g, "pen_gather_bytes", o, true);
    if (status != PEN_OK) return status;
    status      = check_gather(g, in, size, out, root);
    gathering w = {0};
    if (status == PEN_OK) {
        w.sizes  = calloc((size_t)g->size, sizeof *w.sizes);
        w.counts = calloc((size_t)g->size, sizeof *w.counts);
        if (w.sizes == NULL || w.counts == NULL)
            status = last_error_report(PEN_NO_MEMORY, "no memory for %d lengths", g->size);
    }
    if (status == PEN_OK) status = gather_bytes(g, in, size, out, root, &w, o);
    free(w.sizes);
    free(w.counts);
    free(w.all);
    return context_leave(g->ctx, status);
}
