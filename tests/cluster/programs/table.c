/* table.c - a program that trains a table by key: every rank pushes gradients of keys drawn from (round, rank).
 *
 *   table [NAME=VALUE ...]      settings of the SDK, and words of its own:
 *   rounds=8 keys=200 batch=60 dim=5     dim=0: key k has 1 + k % 7 values
 *   type=f32|bf16|f16  place=hash|range|own  any=0|1 (keys repeat, unsorted)
 *   verb=push|push_pull  in_flight=1     pushes that are not waited for yet
 *   rule=RULE init=INIT consistency=bsp|async|"ssp s=1"
 *   handler=NAME cmd=0                   of servers with plugin/handlers.c
 *   tensor=1                             also trains a tensor, by steps; a round is then a step
 *   pause_ms=0                           between rounds
 *   mistake=order|room|name|rank         keys out of order, too little room, a name twice, another dim on rank 1
 * Prints, from rank 0, "key K VALUES..." of every key, and from each rank "rank R digest HEX of N values".
 * A gradient is ((key + 3 * element + 5 * rank + 7 * round) % 9 - 4) / 4, which all types hold exactly.
 */
#include "penstock.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS_MAX = 32, KEYS_MAX = 4096, LENGTH_MAX = 64, FLIGHT_MAX = 16 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fprintf(stderr, "table: %s\n", pen_last_error(NULL)), 1;      \
    } while (0)

static struct {
    long rounds, keys, batch, dim, any, in_flight, tensor, pause_ms, cmd;
    const char *type, *place, *verb, *rule, *init, *consistency, *mistake, *handler;
} own = {.rounds      = 8,
         .keys        = 200,
         .batch       = 60,
         .dim         = 5,
         .in_flight   = 1,
         .type        = "f32",
         .place       = "hash",
         .verb        = "push",
         .rule        = "sgd lr=0.5",
         .init        = "zero",
         .consistency = "bsp",
         .mistake     = ""};

static uint64_t keys[FLIGHT_MAX][KEYS_MAX];
static uint32_t lens[FLIGHT_MAX][KEYS_MAX];
static uint8_t in[FLIGHT_MAX][KEYS_MAX * LENGTH_MAX * 4],
    out[FLIGHT_MAX][KEYS_MAX * LENGTH_MAX * 4];
static uint32_t out_lens[FLIGHT_MAX][KEYS_MAX];
static float w[4096], grad[4096];

static int is_own(const char *word)
{
    const struct {
        const char *name;
        long *number;
        const char **text;
    } all[] = {{"rounds=", &own.rounds, NULL},
               {"keys=", &own.keys, NULL},
               {"batch=", &own.batch, NULL},
               {"dim=", &own.dim, NULL},
               {"any=", &own.any, NULL},
               {"in_flight=", &own.in_flight, NULL},
               {"tensor=", &own.tensor, NULL},
               {"pause_ms=", &own.pause_ms, NULL},
               {"cmd=", &own.cmd, NULL},
               {"type=", NULL, &own.type},
               {"place=", NULL, &own.place},
               {"verb=", NULL, &own.verb},
               {"rule=", NULL, &own.rule},
               {"init=", NULL, &own.init},
               {"mistake=", NULL, &own.mistake},
               {"handler=", NULL, &own.handler},
               {"consistency=", NULL, &own.consistency}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t n = strlen(all[i].name);
        if (strncmp(word, all[i].name, n) != 0) continue;
        if (all[i].number != NULL) *all[i].number = atol(word + n);
        if (all[i].text != NULL) *all[i].text = word + n;
        return 1;
    }
    return 0;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* Key number i of all: small ones, and both ends of the range. */
static uint64_t key_at(long i)
{
    return i == own.keys ? UINT64_MAX : i == own.keys + 1 ? UINT64_MAX / 2 : (uint64_t)i;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static long draw(long round, int rank, uint64_t *key)
{
    long n = 0;
    for (long i = 0; i < own.batch; i++)
        key[i] = key_at(
            (long)(mix((uint64_t)(round * 1000003 + rank * 7919 + i)) % (uint64_t)(own.keys + 2)));
    if (own.any) return own.batch;
    qsort(key, (size_t)own.batch, sizeof *key, by_number);
    for (long i = 0; i < own.batch; i++)
        if (n == 0 || key[i] != key[n - 1]) key[n++] = key[i];
    return n;
}

static uint32_t length_of(uint64_t key)
{
    return own.dim > 0 ? (uint32_t)own.dim : 1 + (uint32_t)(key % 7);
}

static size_t width(void)
{
    return strcmp(own.type, "f32") == 0 ? 4 : 2;
}

/* Of a number that is exact in every type. */
static void put(uint8_t *to, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    if (strcmp(own.type, "f16") == 0)
        half = value == 0 ? 0
                          : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 |
                                       (bits >> 13 & 0x3ff));
    if (width() == 4)
        memcpy(to, &bits, 4);
    else
        memcpy(to, &half, 2);
}

static float get(const uint8_t *from)
{
    uint32_t bits = 0;
    uint16_t half;
    float value;
    memcpy(&bits, from, width());
    memcpy(&half, from, 2);
    if (width() == 2) bits = (uint32_t)half << 16;
    if (strcmp(own.type, "f16") == 0)
        bits = (half & 0x7fff) == 0
                   ? (uint32_t)(half & 0x8000) << 16
                   : (uint32_t)(half & 0x8000) << 16 | ((uint32_t)(half >> 10 & 0x1f) + 112) << 23 |
                         (uint32_t)(half & 0x3ff) << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static size_t fill(long n, long round, int rank, int slot)
{
    size_t at = 0;
    for (long i = 0; i < n; i++) {
        const uint64_t key = keys[slot][i];
        lens[slot][i]      = length_of(key);
        for (uint32_t e = 0; e < lens[slot][i]; e++, at += width())
            put(&in[slot][at],
                (float)((int)((key % 9 + 3 * e + 5 * (uint64_t)rank + 7 * (uint64_t)round) % 9) -
                        4) /
                    4);
    }
    return at;
}

/* Contiguous thirds of the parts by the lowest bits of the key. */
static uint32_t by_bits(uint64_t key, uint32_t parts, void *user)
{
    (void)user;
    return (uint32_t)(key % parts);
}

static int print_all(pen_table *t, int rank)
{
    uint64_t *key = keys[0], digest = 14695981039346656037u;
    size_t at = 0;
    long n    = own.keys + 2;
    for (long i = 0; i < n; i++) key[i] = key_at(i);
    qsort(key, (size_t)n, sizeof *key, by_number);
    const pen_kv kv = {.keys     = key,
                       .n        = (size_t)n,
                       .out      = out[0],
                       .out_cap  = KEYS_MAX * LENGTH_MAX,
                       .out_lens = out_lens[0],
                       .cmd      = 5}; /* add: keys that nobody pushed are as long as others */
    TRY(pen_kv_pull(t, &kv, NULL, NULL));
    for (long i = 0; i < n; i++) {
        if (rank == 0) printf("key %llu", (unsigned long long)key[i]);
        for (uint32_t e = 0; e < out_lens[0][i]; e++, at += width())
            if (rank == 0) printf(" %.9g", (double)get(&out[0][at]));
        if (rank == 0) printf("\n");
    }
    for (size_t i = 0; i < at; i++) digest = (digest ^ out[0][i]) * 1099511628211u;
    printf("rank %d digest %016llx of %zu values\n", rank, (unsigned long long)digest,
           at / width());
    fflush(stdout);
    return 0;
}

static int make_mistake(pen_table *t)
{
    static uint64_t wrong[] = {3, 3}, fine[] = {3, 4};
    const int is_order = strcmp(own.mistake, "order") == 0;
    const pen_kv kv    = {.keys = is_order ? wrong : fine, .n = 2, .out = out[0], .out_cap = 4};
    if (is_order || strcmp(own.mistake, "room") == 0) TRY(pen_kv_pull(t, &kv, NULL, NULL));
    return 0;
}

static int run_round(pen_table *t, long round, int rank, pen_req *req)
{
    const int slot = (int)(round % own.in_flight);
    TRY(pen_wait(req, NULL));
    const long n    = draw(round, rank, keys[slot]);
    const pen_kv kv = {.keys     = keys[slot],
                       .n        = (size_t)n,
                       .in       = in[slot],
                       .in_lens  = own.dim == 0 ? lens[slot] : NULL,
                       .out      = out[slot],
                       .out_cap  = KEYS_MAX * LENGTH_MAX,
                       .out_lens = out_lens[slot],
                       .cmd      = (int32_t)own.cmd};
    (void)fill(n, round, rank, slot);
    if (strcmp(own.verb, "push") == 0)
        TRY(pen_kv_push(t, &kv, NULL, req));
    else
        TRY(pen_kv_push_pull(t, &kv, NULL, req));
    const struct timespec pause = {own.pause_ms / 1000, own.pause_ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    return 0;
}

static int train(pen_ctx *ctx, pen_table *t, int rank)
{
    pen_req req[FLIGHT_MAX] = {{0}};
    pen_step step;
    pen_status status = PEN_OK;
    if (!own.tensor)
        for (long round = 0; round < own.rounds; round++)
            if (run_round(t, round, rank, &req[round % own.in_flight]) != 0) return 1;
    while (own.tensor && (status = pen_step_begin(ctx, &step)) == PEN_OK) {
        if (run_round(t, (long)step.index, rank, &req[0]) != 0) return 1;
        TRY(pen_wait(&req[0], NULL));
        for (int i = 0; i < 4096; i++) grad[i] = (float)((i + rank) % 5 - 2);
        TRY(pen_ready(ctx, NULL, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
        printf("rank %d step %lld\n", rank, (long long)step.index);
        fflush(stdout);
    }
    if (status != PEN_OK && status != PEN_END)
        return fprintf(stderr, "table: %s\n", pen_last_error(NULL)), 1;
    for (int i = 0; i < FLIGHT_MAX; i++) TRY(pen_wait(&req[i], NULL));
    return 0;
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    int n_words                      = 0;
    for (int i = 1; i < argc && n_words < WORDS_MAX; i++)
        if (!is_own(argv[i])) words[n_words++] = argv[i];
    if (own.keys + 2 > KEYS_MAX || own.batch > KEYS_MAX || own.dim > LENGTH_MAX ||
        own.in_flight < 1 || own.in_flight > FLIGHT_MAX)
        return fprintf(stderr, "table: a number is too large\n"), 2;
    pen_ctx *ctx;
    pen_params *params;
    pen_table *t;
    TRY(pen_init(words, &ctx));
    const pen_params_desc p = {.name = "rows", .optim = own.rule, .sync = own.consistency};
    TRY(pen_params_new(ctx, &p, &params));
    pen_table_desc d = {.name  = "emb",
                        .dtype = strcmp(own.type, "f32") == 0   ? PEN_F32
                                 : strcmp(own.type, "f16") == 0 ? PEN_F16
                                                                : PEN_BF16,
                        .flags = (own.any ? PEN_KEYS_ANY : 0) |
                                 (strcmp(own.place, "range") == 0 ? PEN_KEYS_RANGE : 0),
                        .dim     = own.dim,
                        .params  = own.handler == NULL ? params : NULL,
                        .init    = own.handler == NULL ? own.init : NULL,
                        .handler = own.handler,
                        .place   = strcmp(own.place, "own") == 0 ? by_bits : NULL};
    if (strcmp(own.mistake, "rank") == 0 && pen_rank(pen_world(ctx)) == 1) d.dim++;
    TRY(pen_table_new(ctx, &d, &t));
    if (strcmp(own.mistake, "name") == 0) TRY(pen_table_new(ctx, &d, &t));
    const pen_tensor_desc weight = {
        .name = "w", .ndim = 1, .shape = {4096}, .param = w, .grad = grad, .init = "zero"};
    if (own.tensor) TRY(pen_register(ctx, &weight, NULL));
    TRY(pen_commit(ctx));
    const int rank = pen_rank(pen_world(ctx));
    if (make_mistake(t) != 0 || train(ctx, t, rank) != 0) return 1;
    /* The last step ended after the rows of all ranks were pushed; without steps, a barrier tells. */
    if (!own.tensor) TRY(pen_barrier(pen_world(ctx), NULL, NULL));
    if (print_all(t, rank) != 0) return 1;
    TRY(pen_finalize(ctx));
    return 0;
}
