/* command_memory.c - `penstock memory`: bytes of parameters, gradients and optimizer state per process.
 *
 * The formulas are those of ZeRO (Rajbhandari et al., arXiv:1910.02054, section 5 and figure 1): with P parameters, N
 * workers, 16-bit numbers and Adam 16P, 4P + 12P/N, 2P + 14P/N, 16P/N bytes per worker; with servers the servers hold
 * the state.  `here` is what our processes hold; it differs where sums are float32.
 */
#include "cli/command.h"
#include "common/base/why.h"
#include "common/compute/optim/optim.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef enum { STAGE_DDP, STAGE_PS, STAGE_1, STAGE_2, STAGE_3, STAGE_3_NODE, STAGE_2_NODE } stage;

/* Values of the setting `mode`. */
static const char *const strategies[] = {"ddp",
                                         "ps",
                                         "zero1",
                                         "zero2",
                                         "zero3",
                                         "hybrid_shard",
                                         "hybrid_shard_zero2",
                                         "allreduce",
                                         "no_shard",
                                         "shard_grad_op",
                                         "full_shard",
                                         NULL};
static const stage stages[] = {STAGE_DDP,    STAGE_PS,  STAGE_1,   STAGE_2, STAGE_3, STAGE_3_NODE,
                               STAGE_2_NODE, STAGE_DDP, STAGE_DDP, STAGE_2, STAGE_3};
static const char *const precisions[] = {"fp32", "bf16", "fp16", NULL};

typedef struct {
    double params;
    uint64_t world, servers, per_node, bucket, live;
    int mode, precision;
    char optim[CONFIG_TEXT_BYTES];
    bool json;
} memory_settings;

#define ROW(...) CONFIG_ROW(memory_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(params,    F64,  "0",        0, 1e15,    NULL,       "Number of parameters of the model, for example 124439808 or 7.5e9.")
    ROW(world,     U64,  "1",        1, 1048576, NULL,       "Number of workers.")
    ROW(servers,   U64,  "0",        0, 10000,   NULL,       "Number of parameter servers; 0: the workers hold the state.")
    ROW(mode,      ENUM, "ddp",      0, 0,       strategies, "Training mode, as for penstock run.")
    ROW(precision, ENUM, "bf16",     0, 0,       precisions, "Type of parameters and gradients; master copies and optimizer state are float32.")
    ROW(optim,     TEXT, "adamw",    0, 0,       NULL,       "Update rule; determines the optimizer state per parameter.")
    ROW(per_node,  U64,  "0",        0, 1048576, NULL,       "Workers per machine, for hybrid strategies; 0: all.")
    ROW(bucket,    U64,  "6553600",  0, 1e15,    NULL,       "Elements of gradients in flight per worker, with zero2 or zero3 on servers.")
    ROW(live,      U64,  "1000000000", 0, 1e15,  NULL,       "Elements of gathered parameters with zero3; the setting max_live.")
    ROW(json,      BOOL, "no",       0, 0,       NULL,       "Print JSON.")
    {0},
};
/* clang-format on */

static const char usage[] =
    "usage: penstock memory --params N --world W [--servers S] [--mode "
    "zero2] [--precision bf16]\n"
    "Bytes of parameters, gradients and optimizer state per process: by the "
    "ZeRO formulas, and as\n"
    "held by Penstock.  Activations, buffers and caches are not included.  1 "
    "GB is 1e9 bytes.";

/* One row of the table. */
typedef struct {
    const char *what;
    bool of_server;
    double formula, here; /* bytes */
} part;

typedef struct {
    part part[8];
    int n;
    double worker, server, worker_here, server_here; /* sums */
    double wire; /* elements a worker sends and receives in a step */
} account;

static void add(account *a, const char *what, bool of_server, double formula, double here)
{
    a->part[a->n++] = (part){what, of_server, formula, here};
    *(of_server ? &a->server : &a->worker) += formula;
    *(of_server ? &a->server_here : &a->worker_here) += here;
}

/* Elements of the largest of `shares` equal shares. */
static double share(double params, uint64_t shares)
{
    return ceil(params / (double)shares);
}

/* Gradients as our workers hold them: sums are float32, ddp sums in separate buffers, and zero1 sums float32 gradients
 * in place (worker/train/reducer.h, sharded_internal.h). */
static double gradients_here(stage at, double all, double mine, double type, bool alone)
{
    const double sum = type < 4 ? 4 : 0;
    if (alone) return all * (type + sum);
    if (at == STAGE_DDP) return all * (type + 8);
    if (at == STAGE_1) return all * type + mine * sum;
    return mine * 4;
}

static void account_workers(const memory_settings *s, stage at, int slots, account *a)
{
    const uint64_t node = s->per_node > 0 && s->per_node < s->world ? s->per_node : s->world;
    const bool hybrid   = at == STAGE_2_NODE || at == STAGE_3_NODE;
    const double all = s->params, mine = share(all, hybrid ? node : s->world);
    const double type = s->precision == 0 ? 4 : 2, master = s->precision == 0 ? 0 : 4;
    const bool alone       = s->world == 1;
    const bool cuts_params = at == STAGE_3 || at == STAGE_3_NODE;
    const bool cuts_grads  = cuts_params || at == STAGE_2 || at == STAGE_2_NODE;
    const double state     = at == STAGE_DDP ? all : mine;
    const double values    = (cuts_params ? mine : all) * type;
    const bool from_master =
        cuts_params && master > 0 && !alone; /* encoded while they are gathered */
    add(a, "parameters", false, values, from_master ? 0 : values);
    add(a, "gradients", false, (cuts_grads ? mine : all) * type,
        gradients_here(at, all, mine, type, alone));
    if (master > 0) add(a, "float32 masters", false, state * master, state * master);
    add(a, "optimizer state", false, state * 4 * slots, state * 4 * slots);
    a->wire = cuts_params ? 3 * all : 2 * all;
}

static void account_servers(const memory_settings *s, stage at, int slots, account *a)
{
    const double all = s->params, mine = share(all, s->servers);
    const double type   = s->precision == 0 ? 4 : 2;
    const double bucket = fmin(all, (double)s->bucket), live = fmin(all, (double)s->live);
    const bool lets_grads = at == STAGE_2 || at == STAGE_3, lets_params = at == STAGE_3;
    add(a, lets_params ? "parameters in use" : "parameters", false,
        (lets_params ? live : all) * type, (lets_params ? live : all) * type);
    add(a, lets_grads ? "gradients in flight" : "gradients", false,
        (lets_grads ? bucket : all) * type, (lets_grads ? bucket : all) * type);
    add(a, "float32 parameters", true, mine * 4, mine * 4);
    add(a, "optimizer state", true, mine * 4 * slots, mine * 4 * slots);
    add(a, "gradient sums", true, mine * type, mine * 4);
    if (type < 4) add(a, "encoded parameters", true, 0, mine * type);
    a->wire = lets_params ? 3 * all : 2 * all;
}

/* ---- printing -------------------------------------------------------------------------------------------- */

static void print_json(const memory_settings *s, const account *a)
{
    json_t *parts = json_array();
    for (int i = 0; i < a->n; i++)
        json_array_append_new(parts, json_pack("{s:s, s:s, s:I, s:I}", "what", a->part[i].what,
                                               "of", a->part[i].of_server ? "server" : "worker",
                                               "formula", (json_int_t)a->part[i].formula, "here",
                                               (json_int_t)a->part[i].here));
    json_t *here = json_pack("{s:I, s:I}", "bytes_per_worker", (json_int_t)a->worker_here,
                             "bytes_per_server", (json_int_t)a->server_here);
    json_t *all  = json_pack(
         "{s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "params", (json_int_t)s->params,
         "world", (json_int_t)s->world, "servers", (json_int_t)s->servers, "mode",
         strategies[s->mode], "precision", precisions[s->precision], "optim", s->optim,
         "bytes_per_worker", (json_int_t)a->worker, "bytes_per_server", (json_int_t)a->server,
         "elements_on_wire_per_worker", (json_int_t)a->wire, "here", here, "parts", parts);
    command_print_json(all, JSON_COMPACT | JSON_SORT_KEYS);
}

static void print_side(const account *a, bool of_server)
{
    printf("\nper %-25s %14s %14s\n", of_server ? "server" : "worker", "formula GB",
           "this job, GB");
    for (int i = 0; i < a->n; i++)
        if (a->part[i].of_server == of_server)
            printf("  %-27s %14.5f %14.5f\n", a->part[i].what, a->part[i].formula / 1e9,
                   a->part[i].here / 1e9);
    printf("  %-27s %14.5f %14.5f\n", "total", (of_server ? a->server : a->worker) / 1e9,
           (of_server ? a->server_here : a->worker_here) / 1e9);
}

static void print_text(const memory_settings *s, const account *a)
{
    printf("%.0f parameters in %s, %llu worker%s, %llu server%s, %s, %s\n", s->params,
           precisions[s->precision], (unsigned long long)s->world, s->world == 1 ? "" : "s",
           (unsigned long long)s->servers, s->servers == 1 ? "" : "s", strategies[s->mode],
           s->optim);
    print_side(a, false);
    if (s->servers > 0) print_side(a, true);
    printf("\nEach worker transfers %.6g elements per step (%s).\n", a->wire,
           a->wire > 2 * s->params ? "gradients once, parameters twice"
                                   : "gradients once, parameters once");
    if (a->worker_here != a->worker || a->server_here != a->server)
        printf("Penstock sums gradients in float32 (4 bytes each); buckets in flight are not "
               "included.\n");
    printf("Activations, buffers and caches are not included.\n");
}

int command_memory(int argc, char **argv)
{
    memory_settings s;
    account a = {.n = 0};
    const optim_ops *ops;
    optim_hyper hyper;
    pen_error why;
    const int code = command_settings(rows, &s, argc, argv, usage, NULL);
    if (code >= 0) return code;
    if (optim_parse_of_tensor(s.optim, &ops, &hyper, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    const stage at = stages[s.mode];
    if (s.params < 1 || s.params != floor(s.params))
        return command_fail(EXIT_USAGE,
                            "missing --params N: the number of parameters, a whole number");
    if (at == STAGE_PS && s.servers == 0)
        return command_fail(EXIT_USAGE, "--mode ps needs --servers S");
    if (s.servers > 0 && (at == STAGE_DDP || at == STAGE_2_NODE || at == STAGE_3_NODE))
        return command_fail(EXIT_USAGE, "--servers %llu and --mode %s contradict each other",
                            (unsigned long long)s.servers, strategies[s.mode]);
    if (s.servers > 0)
        account_servers(&s, at, ops->slot_count, &a);
    else
        account_workers(&s, at, ops->slot_count, &a);
    if (s.json)
        print_json(&s, &a);
    else
        print_text(&s, &a);
    return 0;
}
