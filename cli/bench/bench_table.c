/* bench_table.c - `penstock bench table`: how many keys a second a table by key serves, beside a bare one.
 *
 * The command starts a job of itself with `penstock run`; the rank uses only the public SDK.  Batches of keys are drawn
 * beforehand, Zipf 0.99, and several are in flight.  Keys are counted as drawn, before repeated ones of a batch are one;
 * without --any that is done beforehand, as ps-lite's users do, with --any by the SDK within the time.
 * The limit is measured between, by another program (tests/bench/limits/limit_table.c), while the rank sleeps.  After the
 * measurements the values of a batch are compared with a model of adagrad in double precision.
 */
#include "cli/bench/bench.h"
#include "cli/command.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 1000, FLIGHT_MAX = 64, PAIRS_MAX = 1000, FILL = 4096 };

typedef struct {
    uint64_t servers, replicas, rows, dim, batch, in_flight, pairs;
    double seconds;
    int over;
    bool any, json, limit;
} table_settings;

#define ROW(...) CONFIG_ROW(table_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(servers,   U64,  "1",    1,     64,       NULL,       "Server processes.")
    ROW(replicas,  U64,  "0",    0,     2,        NULL,       "Copies of each shard on other servers.")
    ROW(rows,      U64,  "1m",   2,     1 << 30,  NULL,       "Rows of the table.")
    ROW(dim,       U64,  "32",   1,     65536,    NULL,       "Values of a row, float32.")
    ROW(batch,     U64,  "500",  1,     65536,    NULL,       "Keys of a request.")
    ROW(in_flight, U64,  "8",    1,     FLIGHT_MAX, NULL,     "Requests in flight.")
    ROW(any,       BOOL, "no",   0,     0,        NULL,       "Keys repeat, unsorted (PEN_KEYS_ANY); no: sorted, each once, beforehand.")
    ROW(pairs,     U64,  "7",    1,     PAIRS_MAX, NULL,      "Measurements, alternating with the limit.")
    ROW(seconds,   F64,  "2",    0.001, 60,       NULL,       "Length of each measurement.")
    ROW(over,      ENUM, "tcp",  0,     0,        bench_transports, BENCH_TRANSPORTS)
    ROW(limit,     BOOL, "yes",  0,     0,        NULL,       "Also measure the limit.")
    ROW(json,      BOOL, "no",   0,     0,        NULL,       "Print JSON, one object per line.")
    {0},
};
/* clang-format on */

typedef struct {
    table_settings s;
    pen_ctx *ctx;
    pen_table *table;
    uint64_t *keys;      /* [BATCHES][batch] */
    uint32_t *number;    /* [BATCHES][batch] of the rows, to follow what they should be */
    uint32_t *counts;    /* [BATCHES] */
    float *grad, *out;   /* [batch][dim], all ones; [in_flight][batch][dim] */
    double *sum, *value; /* [rows] of adagrad: all elements of a row are alike */
    uint32_t *repeats;   /* [rows] in one batch */
    uint64_t pushed;     /* batches */
} rank_state;

static const double lr = 0.01;

/* ---- batches --------------------------------------------------------------------------------- */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static uint64_t key_of(uint64_t row)
{
    return mix(row + 1);
}

typedef struct {
    uint64_t key;
    uint32_t row;
} drawn;

static int by_key(const void *a, const void *b)
{
    const uint64_t x = ((const drawn *)a)->key, y = ((const drawn *)b)->key;
    return x < y ? -1 : x > y;
}

/* Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994. */
static uint64_t draw_zipf(const rank_state *w, double zeta, uint64_t *seed)
{
    const double theta = 0.99, n = (double)w->s.rows, half = 1 + pow(0.5, theta);
    const double eta = (1 - pow(2 / n, 1 - theta)) / (1 - half / zeta);
    const double u   = (double)(mix(++*seed) >> 11) / 9007199254740992.0;
    if (u * zeta < half) return u * zeta >= 1;
    const uint64_t i = (uint64_t)(n * pow(eta * u - eta + 1, 1 / (1 - theta)));
    return i < w->s.rows ? i : w->s.rows - 1;
}

static void draw_batches(rank_state *w, drawn *d)
{
    double zeta   = 0;
    uint64_t seed = 1;
    for (uint64_t i = 1; i <= w->s.rows; i++) zeta += pow((double)i, -0.99);
    for (uint64_t b = 0; b < BATCHES; b++) {
        uint64_t *key = &w->keys[b * w->s.batch], n = 0;
        for (uint64_t i = 0; i < w->s.batch; i++) {
            d[i].row = (uint32_t)draw_zipf(w, zeta, &seed);
            d[i].key = key_of(d[i].row);
        }
        if (!w->s.any) qsort(d, w->s.batch, sizeof *d, by_key);
        for (uint64_t i = 0; i < w->s.batch; i++) {
            if (!w->s.any && n > 0 && d[i].key == key[n - 1]) continue;
            w->number[b * w->s.batch + n] = d[i].row;
            key[n++]                      = d[i].key;
        }
        w->counts[b] = (uint32_t)n;
    }
}

/* ---- what rows should be --------------------------------------------------------------------- */
/* A push of batch b: all gradients are 1, those of a key that comes twice are added. */
static void follow_push(rank_state *w, uint64_t b)
{
    const uint32_t *number = &w->number[b * w->s.batch];
    for (uint32_t i = 0; i < w->counts[b]; i++) w->repeats[number[i]]++;
    for (uint32_t i = 0; i < w->counts[b]; i++) {
        const double gradient = w->repeats[number[i]];
        if (gradient == 0) continue;
        w->sum[number[i]] += gradient * gradient;
        w->value[number[i]] -= lr * gradient / (sqrt(w->sum[number[i]]) + 1e-10);
        w->repeats[number[i]] = 0;
    }
}

static bool is_right(const rank_state *w, uint64_t b, const float *have)
{
    for (uint64_t i = 0; i < w->counts[b] * w->s.dim; i++) {
        const double want = w->value[w->number[b * w->s.batch + i / w->s.dim]];
        if (fabs((double)have[i] - want) <= 1e-3 * fmax(1, fabs(want))) continue;
        command_fail(1, "row of key %" PRIu64 " is %g after %" PRIu64 " batches, expected %g",
                     w->keys[b * w->s.batch + i / w->s.dim], (double)have[i], w->pushed, want);
        return false;
    }
    return true;
}

/* ---- measuring ------------------------------------------------------------------------------- */
static pen_kv batch_of(rank_state *w, uint64_t b, uint64_t slot)
{
    const size_t room = w->s.batch * w->s.dim;
    return (pen_kv){.keys    = &w->keys[b * w->s.batch],
                    .n       = w->counts[b],
                    .in      = w->grad,
                    .out     = w->out + slot * room,
                    .out_cap = room};
}

/* Batches from `first` on; *spent: from the first request to the end of the last. */
static pen_status run_rows(rank_state *w, bool pushes, uint64_t first, uint64_t n, double *spent)
{
    pen_req request[FLIGHT_MAX] = {{0}};
    const double start          = bench_seconds();
    pen_status status           = PEN_OK;
    for (uint64_t i = 0; i < n + w->s.in_flight && status == PEN_OK; i++) {
        const uint64_t slot = i % w->s.in_flight;
        const pen_kv kv     = batch_of(w, (first + i) % BATCHES, slot);
        status              = pen_wait(&request[slot], NULL);
        if (status != PEN_OK || i >= n) continue;
        status = pushes ? pen_kv_push_pull(w->table, &kv, NULL, &request[slot])
                        : pen_kv_pull(w->table, &kv, NULL, &request[slot]);
    }
    *spent = bench_seconds() - start;
    for (uint64_t i = 0; i < n && pushes; i++) follow_push(w, (first + i) % BATCHES);
    w->pushed += pushes ? n : 0;
    return status;
}

static pen_status verify(rank_state *w, uint64_t b)
{
    const pen_kv kv         = batch_of(w, b, 0);
    const pen_status status = pen_kv_pull(w->table, &kv, NULL, NULL);
    return status == PEN_OK && !is_right(w, b, w->out) ? PEN_INTERNAL : status;
}

/* Keys a second of the limit program, or 0. */
static double run_limit(const table_settings *s, bool pushes)
{
    json_t *result = bench_limit("limit_table --rows %" PRIu64 " --dim %" PRIu64 " --batch %" PRIu64
                                 " --in-flight %" PRIu64 " --push %d --seconds %g --unix %d",
                                 s->rows, s->dim, s->batch, s->in_flight, pushes, s->seconds,
                                 s->over < BENCH_TCP);
    const double rate = json_number_value(json_object_get(result, "keys_per_s"));
    json_decref(result);
    return rate;
}

typedef struct {
    double ours[PAIRS_MAX], limit[PAIRS_MAX], ratio[PAIRS_MAX]; /* keys a second */
} pairs;

static void print_result(const rank_state *w, bool pushes, pairs *p)
{
    const table_settings *s = &w->s;
    const char *verb        = pushes ? "push + pull, adagrad" : "pull";
    const double ours       = bench_quantile(p->ours, s->pairs, 0.5),
                 limit      = bench_quantile(p->limit, s->pairs, 0.5);
    const double ratio      = bench_quantile(p->ratio, s->pairs, 0.5);
    if (!s->json) {
        printf("table      %" PRIu64 " rows of %" PRIu64 ", batches of %" PRIu64 ", %" PRIu64
               " in flight, %s, %s, %s\n           %.2f M keys/s",
               s->rows, s->dim, s->batch, s->in_flight, bench_transport_name(s->over),
               s->any ? "any keys" : "sorted keys", verb, ours / 1e6);
        if (s->limit)
            printf(
                "   limit (bare table, plain socket) %.2f   ratio %.2f (%.2f to %.2f over %" PRIu64
                " pairs)",
                limit / 1e6, ratio, p->ratio[0], p->ratio[s->pairs - 1], s->pairs);
        printf("\n");
        fflush(stdout);
        return;
    }
    command_print_json(
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:b}",
                  "bench", "table", "rows", (json_int_t)s->rows, "dim", (json_int_t)s->dim, "batch",
                  (json_int_t)s->batch, "in_flight", (json_int_t)s->in_flight, "transport",
                  bench_transport_name(s->over), "any", (int)s->any, "verb",
                  pushes ? "push_pull" : "pull", "keys_per_s", ours, "limit_keys_per_s", limit,
                  "ratio", ratio, "ratio_min", p->ratio[0], "ratio_max", p->ratio[s->pairs - 1],
                  "pairs", (json_int_t)s->pairs, "verified", 1),
        JSON_COMPACT);
}

static pen_status run_pairs(rank_state *w, bool pushes)
{
    pairs *p = calloc(1, sizeof *p);
    double spent;
    uint64_t first = 0;
    if (p == NULL) return PEN_NO_MEMORY;
    pen_status status = run_rows(w, pushes, 0, 200, &spent);
    const uint64_t n  = (uint64_t)(w->s.seconds / (spent / 200)) + 1;
    for (uint64_t i = 0; i < w->s.pairs && status == PEN_OK; i++, first += n) {
        status      = run_rows(w, pushes, first, n, &spent);
        p->ours[i]  = (double)(n * w->s.batch) / spent;
        p->limit[i] = w->s.limit ? run_limit(&w->s, pushes) : 0;
        p->ratio[i] = p->limit[i] > 0 ? p->ours[i] / p->limit[i] : 0;
        if (status == PEN_OK) status = verify(w, (first + n - 1) % BATCHES);
    }
    if (status == PEN_OK) print_result(w, pushes, p);
    free(p);
    return status;
}

/* ---- the rank -------------------------------------------------------------------------------- */
/* Makes all rows, as one update of each. */
static pen_status fill(rank_state *w)
{
    drawn *all        = malloc(w->s.rows * sizeof *all);
    uint64_t *key     = malloc(FILL * sizeof *key);
    float *grad       = malloc(FILL * w->s.dim * sizeof *grad);
    pen_status status = all != NULL && key != NULL && grad != NULL ? PEN_OK : PEN_NO_MEMORY;
    for (uint64_t i = 0; status == PEN_OK && i < FILL * w->s.dim; i++) grad[i] = 1;
    for (uint64_t i = 0; status == PEN_OK && i < w->s.rows; i++)
        all[i] = (drawn){key_of(i), (uint32_t)i};
    if (status == PEN_OK) qsort(all, w->s.rows, sizeof *all, by_key);
    for (uint64_t at = 0; at < w->s.rows && status == PEN_OK; at += FILL) {
        const uint64_t n = w->s.rows - at < FILL ? w->s.rows - at : FILL;
        for (uint64_t i = 0; i < n; i++) {
            const uint32_t number = all[at + i].row;
            key[i]                = all[at + i].key;
            w->sum[number]        = 1;
            w->value[number]      = -lr;
        }
        const pen_kv kv = {.keys = key, .n = n, .in = grad};
        status          = pen_kv_push(w->table, &kv, NULL, NULL);
    }
    free(all);
    free(key);
    free(grad);
    return status;
}

static pen_status prepare(rank_state *w)
{
    const size_t all = BATCHES * w->s.batch, room = w->s.batch * w->s.dim;
    drawn *d   = malloc(w->s.batch * sizeof *d);
    w->keys    = malloc(all * sizeof *w->keys);
    w->number  = malloc(all * sizeof *w->number);
    w->counts  = malloc(BATCHES * sizeof *w->counts);
    w->grad    = malloc(room * sizeof *w->grad);
    w->out     = calloc(w->s.in_flight * room, sizeof *w->out);
    w->sum     = calloc(w->s.rows, sizeof *w->sum);
    w->value   = calloc(w->s.rows, sizeof *w->value);
    w->repeats = calloc(w->s.rows, sizeof *w->repeats);
    if (d == NULL || w->keys == NULL || w->number == NULL || w->counts == NULL || w->grad == NULL ||
        w->out == NULL || w->sum == NULL || w->value == NULL || w->repeats == NULL) {
        free(d);
        return PEN_NO_MEMORY;
    }
    for (size_t i = 0; i < room; i++) w->grad[i] = 1;
    draw_batches(w, d);
    free(d);
    pen_params *params;
    pen_status status = pen_init(NULL, &w->ctx);
    if (status == PEN_OK)
        status = pen_params_new(
            w->ctx, &(pen_params_desc){.name = "rows", .optim = "adagrad lr=0.01", .sync = "async"},
            &params);
    if (status == PEN_OK)
        status = pen_table_new(w->ctx,
                               &(pen_table_desc){.name   = "rows",
                                                 .flags  = w->s.any ? PEN_KEYS_ANY : 0,
                                                 .dim    = (int64_t)w->s.dim,
                                                 .params = params},
                               &w->table);
    return status == PEN_OK ? pen_commit(w->ctx) : status;
}

int bench_table_rank(int argc, char **argv)
{
    rank_state w = {0};
    int code = command_settings(rows, &w.s, argc, argv, "usage: penstock bench table [...]", NULL);
    if (code >= 0) return code;
    pen_status status = prepare(&w);
    if (status == PEN_OK) status = fill(&w);
    if (status == PEN_OK) status = run_pairs(&w, false);
    if (status == PEN_OK) status = run_pairs(&w, true);
    if (status != PEN_OK) code = command_fail(1, "%s", pen_last_error(NULL));
    if (pen_finalize(w.ctx) != PEN_OK && code < 0)
        code = command_fail(1, "%s", pen_last_error(NULL));
    free(w.keys);
    free(w.number);
    free(w.counts);
    free(w.grad);
    free(w.out);
    free(w.sum);
    free(w.value);
    free(w.repeats);
    return code < 0 ? 0 : code;
}

int bench_table(int argc, char **argv)
{
    table_settings s;
    char replicas[24];
    const int code = command_settings(
        rows, &s, argc, argv,
        "usage: penstock bench table [--rows N] [--dim D] [--batch B] [--any] [--json]", NULL);
    if (code >= 0) return code;
    if (!bench_use_transport(s.over)) return command_fail(1, "no memory");
    snprintf(replicas, sizeof replicas, "%" PRIu64, s.replicas);
    const char *const flags[] = {"--replicas", replicas, NULL};
    const char *const verb[]  = {"table-rank", NULL};
    return bench_run_job(s.servers, 1, flags, verb, argc - 1, argv + 1);
}
