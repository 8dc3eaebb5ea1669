/* header.c - calls every function of penstock.h, with every flag and type, and prints what each answers.
 *
 *   header servers|workers|abort|spawn [NAME=VALUE ...]     which part, and settings of the SDK
 * Prints "NAME STATUS" for each call; tests/cluster/header.bats compares the names with those of the header.
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, LAYERS = 3, WORDS_MAX = 16 };

static int rank, n_bad;
static float zeros[N], in[2 * N], out[2 * N], w[N], grad_w[N], stack[LAYERS * N],
    grad_stack[LAYERS * N], running[4], frozen[4], spare[4], grad_spare[4], free_w[N], grad_free[N],
    bound[N];

static void say(const char *name, pen_status status)
{
    if (rank == 0) printf("%s %s\n", name, pen_status_info(status)->name);
    if (status != PEN_OK) fprintf(stderr, "rank %d: %s: %s\n", rank, name, pen_last_error(NULL));
    if (status != PEN_OK) n_bad++;
}

#define DO(name, ...) say(#name, name(__VA_ARGS__))
#define DID(name, ok) say(#name, (ok) ? PEN_OK : PEN_INTERNAL)

/* ---- groups and collectives ------------------------------------------------------------------ */
static void every_type(pen_group *g)
{
    static const pen_op all[]      = {PEN_SUM, PEN_AVG, PEN_PROD, PEN_MIN, PEN_MAX},
                        integers[] = {PEN_LAND, PEN_LOR, PEN_LXOR, PEN_BAND, PEN_BOR, PEN_BXOR};
    for (int t = PEN_F32; t <= PEN_U64; t++) {
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            DO(pen_all_reduce, g, zeros, out, 8, (pen_dtype)t, all[i], NULL, NULL);
        for (size_t i = 0; i < sizeof integers / sizeof *integers && t >= PEN_I8; i++)
            DO(pen_all_reduce, g, zeros, out, 8, (pen_dtype)t, integers[i], NULL, NULL);
    }
}

static void collectives(pen_ctx *ctx, pen_group *g)
{
    const int size     = pen_size(g);
    const pen_opts own = {.flags = PEN_OVERWRITE | PEN_SCALED, .scale = 0.5, .label = "own"},
                   now = {.flags = PEN_NOWAIT};
    pen_req req[2];
    size_t which;
    every_type(g);
    DO(pen_all_reduce, g, in, in, N, PEN_F32, PEN_SUM, &own, NULL);
    DO(pen_broadcast, g, in, N, PEN_F32, 0, NULL, NULL);
    DO(pen_reduce, g, in, out, N, PEN_F32, PEN_SUM, 0, NULL, NULL);
    DO(pen_gather, g, in, N, out, NULL, PEN_F32, PEN_EVERY, NULL, NULL);
    DO(pen_all_gather, g, in, N, out, NULL, PEN_F32, NULL, NULL);
    DO(pen_scatter, g, in, NULL, out, N, PEN_F32, 0, NULL, NULL);
    DO(pen_reduce_scatter, g, in, NULL, out, N, PEN_F32, PEN_SUM, NULL, NULL);
    DO(pen_all_to_all, g, in, NULL, out, NULL, N, PEN_F32, NULL, NULL);
    DO(pen_barrier, g, &now, &req[0]);
    DO(pen_wait, &req[0], NULL);
    DO(pen_send, g, in, N, PEN_F32, (rank + 1) % size, 7, NULL, &req[0]);
    DO(pen_recv, g, out, N, PEN_F32, PEN_ANY, PEN_ANY, NULL, &req[1]);
    for (int i = 0; i < 2; i++) DO(pen_wait_any, req, 2, 5000, &which, NULL);
    DO(pen_batch_begin, ctx);
    DO(pen_all_reduce, g, in, in, N, PEN_F32, PEN_SUM, NULL, NULL);
    DO(pen_batch_end, ctx, NULL, NULL);
    pen_bytes bytes = {"hello", 5}, got[2];
    DO(pen_broadcast_bytes, g, &bytes, 0, NULL);
    DO(pen_gather_bytes, g, "a", 1, got, PEN_EVERY, NULL);
    for (int i = 0; i < size; i++) pen_free(got[i].data);
    if (rank != 0) pen_free(bytes.data);
}

static void groups(pen_ctx *ctx)
{
    pen_group *g = pen_world(ctx), *made, *half, *left;
    int ranks[2] = {0, 1}, had[2];
    DID(pen_group_get, pen_group_get(ctx, PEN_GROUP_NODE) && pen_group_get(ctx, PEN_GROUP_ACROSS));
    DID(pen_rank, pen_rank(g) == rank);
    DID(pen_size, pen_size(g) == 2);
    DID(pen_group_ranks, pen_group_ranks(g, had, 2) == 2);
    DO(pen_group_new, g, ranks, 2, &made);
    DO(pen_group_split, g, 0, rank, &half);
    DO(pen_group_shrink, half, &left);
    pen_group_free(made);
    pen_group_free(half);
    pen_group_free(left);
    DID(pen_group_free, 1);
}

/* ---- what needs no tensors ------------------------------------------------------------------- */
static void on_event(pen_ctx *ctx, const pen_event *ev, void *user)
{
    (void)ctx, (void)ev, (void)user;
}

static void on_line(int level, const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "%d %s\n", level, line);
}

static void on_command(pen_ctx *ctx, pen_call *call, int head, const void *body, size_t size,
                       void *user)
{
    (void)ctx, (void)head, (void)user;
    DID(pen_reply, pen_reply(call, PEN_OK, body, size, NULL) == PEN_OK);
}

static void small_things(pen_ctx *ctx)
{
    pen_info info;
    pen_error detail;
    double value;
    int64_t number;
    pen_bytes bytes;
    DID(pen_version, pen_version() > 0);
    DID(pen_status_info, pen_status_info(PEN_OK) != NULL);
    DID(pen_last_error, pen_last_error(&detail) != NULL);
    DO(pen_info_get, ctx, &info);
    DO(pen_setting_set, ctx, "deadline_ms", "20000");
    pen_log_set(on_line, NULL, 2);
    DID(pen_log_set, 1);
    void *memory = pen_alloc(ctx, 100, PEN_HOST);
    DID(pen_alloc, memory != NULL);
    DO(pen_keep, memory);
    pen_free(memory);
    pen_free(memory);
    DID(pen_free, 1);
    DO(pen_on_event, ctx, on_event, NULL);
    DO(pen_on_command, ctx, on_command, NULL);
    DO(pen_barrier, pen_world(ctx), NULL, NULL);
    DO(pen_command, ctx, (pen_node){PEN_WORKER, 0}, 1, "x", 1, &bytes, 1, NULL, NULL);
    pen_free(bytes.data);
    DO(pen_lr, "cosine warmup_num_steps=1 total_num_steps=10 lr=0.1", 3, &value);
    DO(pen_metric, ctx, "accuracy", 0.5);
    DO(pen_mark, ctx, "span", 1);
    DO(pen_mark, ctx, "span", 0);
    DO(pen_stat, ctx, "push.bytes", &value);
    DO(pen_store_set, ctx, "key", "value", 5);
    DO(pen_store_get, ctx, "key", &bytes, NULL);
    pen_free(bytes.data);
    DO(pen_store_add, ctx, "count", 1, &number);
    DO(pen_serve, NULL, NULL, 0);
}

static void sampling(pen_ctx *ctx)
{
    pen_sampler *s;
    int64_t index[4], epoch, consumed;
    size_t got;
    DO(pen_sampler_new, ctx, &(pen_sampler_desc){.n = 100}, &s);
    DO(pen_sampler_next, s, index, 4, &got);
    DO(pen_sampler_tell, s, &epoch, &consumed);
    DO(pen_sampler_seek, s, 1, 0);
    pen_sampler_free(s);
    DID(pen_sampler_free, 1);
}

/* ---- training -------------------------------------------------------------------------------- */
typedef struct {
    pen_tensor *w, *layers, *free;
    pen_table *hashed, *ranged;
} model;

static void declare(pen_ctx *ctx, model *m, int has_servers)
{
    static char note[8];
    pen_params *loose = NULL;
    pen_tensor_desc d = {.name  = "w",
                         .ndim  = 1,
                         .shape = {N},
                         .param = w,
                         .grad  = grad_w,
                         .flags = PEN_NO_DECAY,
                         .init  = "zero"};
    DO(pen_register, ctx, &d, &m->w);
    d = (pen_tensor_desc){.name  = "h.{}",
                          .ndim  = 2,
                          .shape = {LAYERS, N},
                          .param = stack,
                          .grad  = grad_stack,
                          .flags = PEN_STACKED,
                          .unit  = "h.{}",
                          .init  = "normal std=0.1"};
    DO(pen_register, ctx, &d, &m->layers);
    d = (pen_tensor_desc){.name  = "frozen",
                          .ndim  = 1,
                          .shape = {4},
                          .param = frozen,
                          .flags = PEN_FROZEN,
                          .init  = "zero"};
    DO(pen_register, ctx, &d, NULL);
    d = (pen_tensor_desc){.name  = "spare",
                          .ndim  = 1,
                          .shape = {4},
                          .param = spare,
                          .grad  = grad_spare,
                          .flags = PEN_ZERO_IF_UNUSED,
                          .init  = "zero"};
    DO(pen_register, ctx, &d, NULL);
    if (has_servers) {
        const pen_params_desc p = {.name = "loose", .optim = "sum", .sync = "async"};
        DO(pen_params_new, ctx, &p, &loose);
        d = (pen_tensor_desc){.name   = "free",
                              .ndim   = 1,
                              .shape  = {N},
                              .param  = free_w,
                              .grad   = grad_free,
                              .params = loose,
                              .init   = "zero"};
        DO(pen_register, ctx, &d, &m->free);
        DO(pen_table_new, ctx,
           &(pen_table_desc){.name = "hashed", .dim = 1, .flags = PEN_KEYS_ANY, .params = loose},
           &m->hashed);
        DO(pen_table_new, ctx,
           &(pen_table_desc){.name = "ranged", .flags = PEN_KEYS_RANGE, .params = loose},
           &m->ranged);
    } else {
        d = (pen_tensor_desc){
            .name = "running", .ndim = 1, .shape = {4}, .param = running, .flags = PEN_BUFFER};
        DO(pen_register, ctx, &d, NULL);
    }
    DO(pen_state_add, ctx, "note", note, sizeof note, 1);
    DO(pen_bind, ctx, m->w, bound, NULL);
    DO(pen_commit, ctx);
    if (has_servers) DO(pen_params_lr, loose, 1);
    DID(pen_view, pen_view(ctx, m->w, PEN_ALL, PEN_PARAM) == bound);
}

static void train(pen_ctx *ctx, const model *m, int steps)
{
    pen_step step;
    double total;
    pen_unit *u = pen_unit_get(ctx, "h", 0);
    DID(pen_unit_get, u != NULL);
    for (int i = 0; i < steps; i++) {
        DO(pen_step_begin, ctx, &step);
        DO(pen_step_micro, ctx, 0);
        DO(pen_step_scalar, ctx, "loss", 1);
        DO(pen_use, ctx, u, PEN_FORWARD, NULL);
        DO(pen_release, ctx, u, PEN_FORWARD, NULL);
        DO(pen_ready_on, ctx, m->w, PEN_ALL, NULL);
        for (int64_t k = LAYERS - 1; k >= 0; k--) DO(pen_ready, ctx, m->layers, k);
        if (m->free != NULL) DO(pen_ready, ctx, m->free, PEN_ALL);
        DO(pen_step_end, ctx, &step);
        DO(pen_step_decided, ctx, &step);
        DO(pen_step_total, ctx, "loss", PEN_SUM, &total);
    }
}

static void keys(const model *m)
{
    static const uint64_t any[] = {9, 3, 9}, sorted[] = {3, 9};
    uint32_t lens[2] = {1, 2};
    pen_kv a = {.keys = any, .n = 3, .in = in, .out = out, .out_cap = 3}, b = {.keys     = sorted,
                                                                               .n        = 2,
                                                                               .in       = in,
                                                                               .in_lens  = lens,
                                                                               .out      = out,
                                                                               .out_cap  = 3,
                                                                               .out_lens = lens};
    DO(pen_kv_push, m->hashed, &a, NULL, NULL);
    DO(pen_kv_pull, m->hashed, &a, NULL, NULL);
    DO(pen_kv_push_pull, m->ranged, &b, NULL, NULL);
}

static void files(pen_ctx *ctx, pen_tensor *t, int has_servers)
{
    uint32_t crc;
    pen_req req;
    pen_step step;
    float momentum[N];
    int64_t applied;
    const pen_slot slot = {.tensor = t, .slot = "momentum_buffer", .data = momentum};
    DO(pen_slots_get, ctx, &slot, 1, &applied, NULL);
    DO(pen_slots_set, ctx, &slot, 1, applied, NULL);
    DO(pen_digest, ctx, &crc);
    DO(pen_export, ctx, "all.safetensors", NULL, NULL);
    DO(pen_snapshot, ctx, NULL, &req);
    for (int32_t has_ended = 0;
         !has_ended;) { /* which step takes it depends on how fast the question travels */
        size_t which;
        DO(pen_step_begin, ctx, &step);
        DO(pen_ready, ctx, NULL, PEN_ALL);
        DO(pen_step_end, ctx, &step);
        const pen_status status = pen_wait_any(&req, 1, 20, &which, NULL);
        DID(pen_wait_any, status == PEN_OK || status == PEN_AGAIN || status == PEN_END);
        has_ended = status != PEN_AGAIN;
        DO(pen_all_reduce, pen_world(ctx), &has_ended, &has_ended, 1, PEN_I32, PEN_MIN, NULL, NULL);
    }
    DO(pen_wait, &req, NULL);
    if (!has_servers) DO(pen_restore, ctx, -1, NULL);
}

/* ---- the parts ------------------------------------------------------------------------------- */
static int work(const char *part, const char *const words[])
{
    const int has_servers = strcmp(part, "servers") == 0;
    pen_ctx *ctx;
    model m = {0};
    if (pen_init(words, &ctx) != PEN_OK) return fprintf(stderr, "%s\n", pen_last_error(NULL)), 1;
    rank = pen_rank(pen_world(ctx));
    DID(pen_init, 1);
    if (strcmp(part, "abort") == 0) {
        if (rank == 0) pen_abort(ctx, "enough");
        DO(pen_barrier, pen_world(ctx), NULL, NULL);
        (void)pen_finalize(ctx); /* it has left then */
        return 1;
    }
    small_things(ctx);
    declare(ctx, &m, has_servers);
    groups(ctx);
    collectives(ctx, pen_world(ctx));
    sampling(ctx);
    train(ctx, &m, 3);
    files(ctx, m.w, has_servers);
    if (has_servers) {
        DO(pen_push, ctx, m.free, PEN_ALL, NULL, NULL, NULL);
        DO(pen_pull, ctx, m.free, PEN_ALL, NULL, NULL, NULL);
        DO(pen_push_pull, ctx, m.free, PEN_ALL, NULL, NULL, NULL, NULL);
        keys(&m);
    }
    DO(pen_barrier, pen_world(ctx), NULL, NULL);
    DO(pen_finalize, ctx);
    return n_bad != 0;
}

/* One job writes its parameters; they are the first values of the next. */
static int pass_on(pen_ctx *ctx, void *imports)
{
    const pen_tensor_desc d = {
        .name = "w", .ndim = 1, .shape = {N}, .param = w, .grad = grad_w, .init = "const v=3"};
    rank = pen_rank(pen_world(ctx));
    DO(pen_register, ctx, &d, NULL);
    if (imports != NULL) DO(pen_import, ctx, "w.safetensors", NULL);
    DO(pen_commit, ctx);
    if (imports == NULL) DO(pen_export, ctx, "w.safetensors", NULL, NULL);
    return n_bad != 0 || w[N - 1] != 3;
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    const char *part                 = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc && i < WORDS_MAX + 2; i++) words[i - 2] = argv[i];
    if (strcmp(part, "spawn") != 0) return work(part, words);
    const int code = pen_spawn(2, pass_on, NULL) + pen_spawn(2, pass_on, words);
    DID(pen_spawn, code == 0);
    return code;
}
