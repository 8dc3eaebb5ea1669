/* serve.c - a program with handlers of its own: it is a server where its environment says so, otherwise a worker.
 *
 *   serve [NAME=VALUE ...]      settings of the SDK.  Each worker
 *   1. meets the others: its request is answered when that of the last has come, with the sum of all
 *   2. pushes keys 0 to 99 and asks the servers, by commands, how many keys they have
 *   3. makes mistakes, and prints what it is told
 *   4. asks many requests at once that other threads answer
 * and prints a line for each.
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 100, WORDS_MAX = 32, FLIGHT = 40, REPLIES_MAX = 16 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fprintf(stderr, "serve: %s\n", pen_last_error(NULL)), 1;      \
    } while (0)

extern const pen_handler *pen_plugin(int *n);

static int meet(pen_ctx *ctx, pen_table *t)
{
    static const uint64_t key = 7;
    float mine[3]             = {1, (float)pen_rank(pen_world(ctx)), 0.5f}, sum[3];
    uint32_t length           = 3;
    const pen_kv kv           = {.keys     = &key,
                                 .n        = 1,
                                 .in       = mine,
                                 .in_lens  = &length,
                                 .out      = sum,
                                 .out_cap  = 3,
                                 .out_lens = &length,
                                 .cmd      = pen_size(pen_world(ctx))};
    for (int i = 0; i < 3; i++) TRY(pen_kv_push_pull(t, &kv, NULL, NULL));
    printf("rank %d met: %g %g %g\n", pen_rank(pen_world(ctx)), sum[0], sum[1], sum[2]);
    return 0;
}

static int count(pen_ctx *ctx, int head)
{
    pen_bytes replies[REPLIES_MAX];
    pen_result result;
    pen_req req;
    uint64_t keys = 0, n;
    TRY(pen_command(ctx, (pen_node){PEN_SERVER, -1}, head, "now", 3, replies, REPLIES_MAX, NULL,
                    &req));
    TRY(pen_wait(&req, &result));
    for (uint64_t i = 0; i < result.count; i++) {
        for (size_t at = 0; at + sizeof n <= replies[i].size; at += sizeof n) {
            memcpy(&n, (char *)replies[i].data + at, sizeof n);
            keys += n;
        }
        pen_free(replies[i].data);
    }
    printf("rank %d: command %d: %llu servers have %llu keys\n", pen_rank(pen_world(ctx)), head,
           (unsigned long long)result.count, (unsigned long long)keys);
    return 0;
}

static int push_all(pen_table *t)
{
    static uint64_t key[KEYS];
    static float value[KEYS];
    for (int i = 0; i < KEYS; i++) key[i] = (uint64_t)i, value[i] = 1;
    const pen_kv kv = {.keys = key, .n = KEYS, .in = value};
    TRY(pen_kv_push(t, &kv, NULL, NULL));
    return 0;
}

static void say(const char *what, pen_status status)
{
    printf("%s: %s: %s\n", what, pen_status_info(status)->name,
           status == PEN_OK ? "" : pen_last_error(NULL));
}

static int err(pen_ctx *ctx, pen_table *add)
{
    static const uint64_t key = 1;
    const float one           = 1;
    const pen_kv refused      = {.keys = &key, .n = 1, .in = &one, .cmd = 9};
    const pen_opts soon       = {.deadline_ms = 300};
    say("refused push", pen_kv_push(add, &refused, NULL, NULL));
    say("refused command",
        pen_command(ctx, (pen_node){PEN_SERVER, 0}, 3, NULL, 0, NULL, 0, NULL, NULL));
    say("command without an answer",
        pen_command(ctx, (pen_node){PEN_SERVER, 0}, 4, NULL, 0, NULL, 0, &soon, NULL));
    return 0;
}

static int many(pen_ctx *ctx, pen_table *late)
{
    static uint64_t key[FLIGHT][KEYS];
    static float in[FLIGHT][KEYS], out[FLIGHT][KEYS];
    pen_req req[FLIGHT];
    for (int f = 0; f < FLIGHT; f++) {
        for (int i = 0; i < KEYS; i++) key[f][i] = (uint64_t)i, in[f][i] = 1;
        const pen_kv kv = {.keys = key[f], .n = KEYS, .in = in[f], .out = out[f], .out_cap = KEYS};
        TRY(pen_kv_push_pull(late, &kv, NULL, &req[f]));
    }
    for (int f = 0; f < FLIGHT; f++) TRY(pen_wait(&req[f], NULL));
    TRY(pen_barrier(pen_world(ctx), NULL, NULL));
    const pen_kv all = {.keys = key[0], .n = KEYS, .out = out[0], .out_cap = KEYS};
    TRY(pen_kv_pull(late, &all, NULL, NULL));
    double sum = 0;
    for (int i = 0; i < KEYS; i++) sum += out[0][i];
    printf("rank %d: late: %g\n", pen_rank(pen_world(ctx)), sum);
    return 0;
}

static int work(const char *const *words)
{
    pen_ctx *ctx;
    pen_table *gather, *add, *late;
    TRY(pen_init(words, &ctx));
    const pen_table_desc g = {.name = "meeting", .handler = "gather"},
                         a = {.name = "sums", .dim = 1, .handler = "add"},
                         l = {.name = "slow", .dim = 1, .handler = "late"};
    TRY(pen_table_new(ctx, &g, &gather));
    TRY(pen_table_new(ctx, &a, &add));
    TRY(pen_table_new(ctx, &l, &late));
    TRY(pen_commit(ctx));
    if (meet(ctx, gather) != 0 || push_all(add) != 0) return 1;
    TRY(pen_barrier(pen_world(ctx), NULL, NULL));
    if (count(ctx, 1) != 0 || count(ctx, 2) != 0 || many(ctx, late) != 0) return 1;
    if (pen_rank(pen_world(ctx)) == 0 && err(ctx, add) != 0) return 1;
    TRY(pen_barrier(pen_world(ctx), NULL, NULL));
    TRY(pen_finalize(ctx));
    return 0;
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    int n;
    const pen_handler *handlers = pen_plugin(&n);
    const pen_status status     = pen_serve(NULL, handlers, n);
    if (status == PEN_END) return 0;
    if (status != PEN_OK) return fprintf(stderr, "serve: %s\n", pen_last_error(NULL)), 1;
    for (int i = 1; i < argc && i <= WORDS_MAX; i++) words[i - 1] = argv[i];
    return work(words);
}
